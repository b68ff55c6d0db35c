--- Locks that are held here. A hold that is collected while it still holds gives its lock back.
local ffi = require "ffi"
local library = require "resty.buflock.library"

if not pcall(ffi.typeof, "buflock_hold") then
  ffi.cdef "typedef struct buflock_hold { char token[64]; uint32_t number; } buflock_hold;"
end

local _M = {}

-- By a hold's number: what it holds. Handles and keys must not be in the hold, whose finalizer would come too late.
local held, keys = {}, {}
-- Numbers that are free, holds that can be used again, and how many numbers there are.
local numbers, free_numbers = {}, 0
local spare, spares = {}, 0
local last = 0

-- Runs wherever the collector does, so it only drops: a few steps in memory, without Lua's or nginx's help.
local function collected(hold)
  local number = hold.number
  local handle, key = held[number], keys[number]
  if handle then
    held[number], keys[number] = nil, nil
    if handle.drop then
      handle.drop(handle, key, ffi.string(hold.token))
    else
      library.buflock_drop(handle.lock, key, #key, hold.token)
    end
  end
  free_numbers = free_numbers + 1
  numbers[free_numbers] = number
end

local new_hold = ffi.metatype("buflock_hold", { __gc = collected })

--- A hold that holds nothing yet; its token is written by an acquire.
function _M.new()
  if spares > 0 then
    local hold = spare[spares]
    spare[spares] = nil
    spares = spares - 1
    return hold
  end
  local hold = new_hold()
  if free_numbers > 0 then
    hold.number = numbers[free_numbers]
    free_numbers = free_numbers - 1
  else
    last = last + 1
    hold.number = last
  end
  return hold
end

--- The lock is ours: from now on it is given back when the hold is collected.
function _M.begin(hold, handle, key)
  local number = hold.number
  held[number], keys[number] = handle, key
end

--- What is held: its key.
function _M.key(hold)
  return keys[hold.number]
end

--- It holds no more, and may be used for another lock; whoever had it must forget it.
function _M.done(hold)
  local number = hold.number
  held[number], keys[number] = nil, nil
  spares = spares + 1
  spare[spares] = hold
end

return _M
