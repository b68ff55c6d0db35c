-- The cdef as LuaJIT reads it, against the library: constants, the struct, and a lock taken and given back.
-- Run from the root of the tree: luajit tests/cdef.lua LIBRARY
package.path = "bindings/lua/lib/?.lua;" .. package.path
local ffi = require("ffi")
require("resty.buflock.cdef")
local buflock, C = ffi.load(arg[1]), ffi.C

assert(C.BUFLOCK_OK == 0 and C.BUFLOCK_BUSY == 1 and C.BUFLOCK_PANIC == -9)
assert(C.BUFLOCK_TOKEN_SIZE == 64 and C.BUFLOCK_DEFAULT == 0xffffffff)
assert(ffi.sizeof("buflock_info") == 24 and ffi.offsetof("buflock_info", "fence") == 16)

local dir = arg[2]
local out = ffi.new("buflock_t *[1]")
assert(buflock.buflock_new("shm:cdef?dir=" .. dir, nil, out) == C.BUFLOCK_OK, ffi.string(buflock.buflock_last_error()))
local lock = ffi.gc(out[0], buflock.buflock_free)
local token, info = ffi.new("char[?]", C.BUFLOCK_TOKEN_SIZE), ffi.new("buflock_info", { size = ffi.sizeof("buflock_info") })
local rc = buflock.buflock_acquire(lock, "key", 3, C.BUFLOCK_DEFAULT, 0, token, info)
assert(rc == C.BUFLOCK_OK and type(rc) == "number", ffi.string(buflock.buflock_last_error()))
assert(#ffi.string(token) == 32 and info.left_ms == 60000 and info.fence > 0)
assert(buflock.buflock_acquire(lock, "key", 3, 1000, 0, token, info) == C.BUFLOCK_BUSY)
assert(buflock.buflock_release(lock, "key", 3, token) == C.BUFLOCK_OK)
assert(buflock.buflock_release(lock, "key", 3, token) == C.BUFLOCK_EXPIRED)
print("ok cdef")
