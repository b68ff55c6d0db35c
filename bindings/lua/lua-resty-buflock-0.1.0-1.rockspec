package = "lua-resty-buflock"
version = "0.1.0-1"
-- From a tree of the sources: luarocks make. The library itself is built by make lib and installed by make install.
source = { url = "." }
description = {
  summary = "Locks that end by themselves, for nginx workers and other programs; a drop-in for lua-resty-lock",
  license = "MIT or Apache-2.0",
}
dependencies = { "lua >= 5.1, < 5.2" }
build = {
  type = "builtin",
  modules = {
    ["resty.buflock"] = "lib/resty/buflock.lua",
    ["resty.buflock.bell"] = "lib/resty/buflock/bell.lua",
    ["resty.buflock.cdef"] = "lib/resty/buflock/cdef.lua",
    ["resty.buflock.deferred"] = "lib/resty/buflock/deferred.lua",
    ["resty.buflock.driver"] = "lib/resty/buflock/driver.lua",
    ["resty.buflock.handle"] = "lib/resty/buflock/handle.lua",
    ["resty.buflock.hold"] = "lib/resty/buflock/hold.lua",
    ["resty.buflock.instance"] = "lib/resty/buflock/instance.lua",
    ["resty.buflock.library"] = "lib/resty/buflock/library.lua",
    ["resty.buflock.line"] = "lib/resty/buflock/line.lua",
    ["resty.buflock.lock"] = "lib/resty/buflock/lock.lua",
    ["resty.buflock.lost"] = "lib/resty/buflock/lost.lua",
    ["resty.buflock.phase"] = "lib/resty/buflock/phase.lua",
    ["resty.buflock.redis"] = "lib/resty/buflock/redis.lua",
    ["resty.buflock.shm"] = "lib/resty/buflock/shm.lua",
    ["resty.buflock.system"] = "lib/resty/buflock/system.lua",
  },
}
