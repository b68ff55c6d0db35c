--- What nginx does not offer of the system. The names are our own, so that no other module's declarations can clash.
local ffi = require "ffi"

local C = ffi.C
local format, tonumber, running = string.format, tonumber, coroutine.running

if not pcall(ffi.typeof, "buflock_clock") then
  ffi.cdef [[
typedef struct buflock_clock { long s, ns; } buflock_clock;
int buflock_system_clock(int id, void *clock) __asm__("clock_gettime");
unsigned int buflock_system_euid(void) __asm__("geteuid");
int buflock_system_mkdir(const char *path, unsigned int mode) __asm__("mkdir");
char *buflock_system_cwd(char *path, size_t size) __asm__("getcwd");
int buflock_system_yieldable(void *thread) __asm__("lua_isyieldable");
]]
end

local MONOTONIC = 1
local clock = ffi.new("buflock_clock")

local _M = {}

--- Seconds of a clock that nobody sets.
---@return number
function _M.now()
  C.buflock_system_clock(MONOTONIC, clock)
  return tonumber(clock.s) + tonumber(clock.ns) / 1e9
end

---@return integer
function _M.euid()
  return tonumber(C.buflock_system_euid())
end

--- Makes a directory for this user alone; it may be there already.
---@param path string
function _M.mkdir(path)
  C.buflock_system_mkdir(path, 448) -- 0700
end

---@return string
function _M.cwd()
  local room = ffi.new("char[4096]")
  return C.buflock_system_cwd(room, 4096) ~= nil and ffi.string(room) or ""
end

--- Whether the running coroutine may yield: not below a C function, such as in a comparator of table.sort. To try it
--- would leave nginx waiting for a yield that never came.
---@return boolean
function _M.can_yield()
  local thread = running()
  if not thread then return false end
  return C.buflock_system_yieldable(ffi.cast("void *", tonumber(format("%p", thread)))) == 1
end

return _M
