--- The locks of this nginx instance: a table in shared memory that only its workers use, and in it the names that
--- lua_shared_dict has declared, or `dict` here.
local system = require "resty.buflock.system"
local handles = require "resty.buflock.handle"

local shared, get_phase, md5, prefix = ngx.shared, ngx.get_phase, ngx.md5, ngx.config.prefix
local type, pairs, pcall, require = type, pairs, pcall, require

local _M = {}

---@class buflock.scope
---@field name string of the dictionary
---@field before string what is put before its keys
---@field url string? of a table that is shared with others
---@field handle buflock.handle? once it was used in this worker
local scopes = {}
local name, options, private

--- Says what this instance is called, where two have the same prefix, or where it is to be found.
---@param new_name string 1 to 58 of A-Z a-z 0-9 . _ -
---@param opts { size: string?, dir: string? }?
---@return true?
---@return string? err
function _M.instance(new_name, opts)
  if type(new_name) ~= "string" or #new_name > 58 or not new_name:find("^[%w._-]+$") then
    return nil, "bad instance name: it has 1 to 58 of A-Z a-z 0-9 . _ -"
  end
  if private then return nil, "too late: locks are in use already" end
  for option in pairs(opts or {}) do
    if option ~= "size" and option ~= "dir" then return nil, "unknown option " .. option end
  end
  name, options = new_name, opts
  return true
end

--- Declares a name for locks, as lua_shared_dict does.
---@param dict_name string
---@param opts { share: string? }? share: the URL of a table whose keys are shared with other programs
---@return true?
---@return string? err
function _M.dict(dict_name, opts)
  if type(dict_name) ~= "string" or dict_name == "" then return nil, "bad dictionary name" end
  local url = opts and opts.share
  if url and not (type(url) == "string" and url:find("^shm:")) then return nil, "share is a URL such as shm:NAME" end
  scopes[dict_name] = { name = dict_name, before = url and "" or dict_name .. "\0", url = url }
  return true
end

--- The place of a dictionary's locks; nil where nobody declared it.
---@param dict_name string
---@return buflock.scope?
function _M.scope(dict_name)
  local scope = scopes[dict_name]
  if not scope and type(dict_name) == "string" and shared[dict_name] then
    _M.dict(dict_name)
    scope = scopes[dict_name]
  end
  return scope
end

-- A relative prefix (nginx -p .) would be the same for instances in different directories.
local function table_name()
  if name then return "nginx." .. name end
  local path = prefix()
  if path:sub(1, 1) ~= "/" then path = system.cwd() .. "/" .. path end
  return "nginx-" .. md5(path)
end

--- Never in /run/buflock: locks of this instance concern nobody else, and whoever shares memory can kill its users.
local function private_handle()
  if private then return private end
  local opts = { dir = options and options.dir or "/dev/shm/buflock-" .. system.euid() }
  if options and options.size then opts.size = options.size end
  local handle, err = handles.new("shm:" .. table_name(), opts)
  if not handle then return nil, err end
  if not (options and options.dir) then
    handle.folder = opts.dir
    system.mkdir(opts.dir)
  end
  private = handle
  return private
end

-- It runs as the master's user: its table would be another than the workers'.
local function is_privileged_agent()
  local ok, process = pcall(require, "ngx.process")
  return ok and process.type() == "privileged agent"
end

-- Attaches this worker. The master never does: it may be another user, and its memory is every worker's.
local function attach(scope)
  if get_phase() == "init" then return nil, "timeout", "cannot lock in init phase" end
  local handle, err
  if scope.url then
    handle, err = handles.new(scope.url)
  elseif is_privileged_agent() then
    return nil, "unavailable", "the privileged agent is another user than the workers: share a table with it"
  else
    handle, err = private_handle()
  end
  if not handle then return nil, "unavailable", err end
  scope.handle = handle
  return handle
end

--- Where a dictionary's locks are, in a worker.
---@return buflock.handle?
---@return string? err
---@return string? detail
function _M.attached(scope)
  local handle = scope.handle
  if handle then return handle end
  return attach(scope)
end

return _M
