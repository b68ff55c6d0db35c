--- Drives an op over cosockets: the library says what to do, here it is done.
local ffi = require "ffi"
local library = require "resty.buflock.library"
local system = require "resty.buflock.system"

local now = system.now
local max, huge = math.max, math.huge
local tcp, sleep = ngx.socket.tcp, ngx.sleep
local tonumber, pairs = tonumber, pairs
local text, gc = ffi.string, ffi.gc
local op_next, op_fail = library.buflock_op_next, library.buflock_op_fail

local OK, BUSY, UNREACHABLE = 0, 1, -3
local DONE, CONNECT, SEND, RECV = 0, 1, 2, 3
-- How long connections are kept for later, in ms, and how many of a server, user and database.
local IDLE, KEPT = 60000, 64
-- How much longer than a step may take, in seconds, its light thread is taken to be alive.
local SLACK = 1

-- Read at once after each op_next: where this yields, others use it.
local step = ffi.new("buflock_step", { size = ffi.sizeof("buflock_step") })

local _M = {}

---@class buflock.job an op that is being driven
---@field op ffi.cdata*? nil: its light thread was taken for dead
---@field overdue number when it will be

local function free(op)
  library.buflock_op_free(gc(op, nil))
end

--- Connects as the step says, or takes a connection that was kept.
---@return table? socket
---@return boolean|string fresh or err
local function connect(timeout)
  local host, port, tls, pool = text(step.host), step.port, step.tls ~= 0, { pool = text(step.pool) }
  local begun, socket = now(), tcp()
  socket:settimeout(timeout)
  local ok, err
  if port == 0 then
    ok, err = socket:connect("unix:" .. host, pool)
  else
    ok, err = socket:connect(host:find(":", 1, true) and "[" .. host .. "]" or host, port, pool)
  end
  if not ok then return nil, err end
  local fresh = socket:getreusedtimes() == 0
  if tls and fresh then
    socket:settimeout(max(1, timeout - (now() - begun) * 1000))
    ok, err = socket:sslhandshake(false, host, true)
    if not ok then
      socket:close()
      return nil, err
    end
  end
  return socket, fresh
end

local function put_away(socket, keep)
  if not (keep and socket:setkeepalive(IDLE, KEPT)) then socket:close() end
end

--- Does a step that takes time. A time limit is not reported: the op knows it.
---@return table? socket
local function take(op, job, socket)
  local kind, timeout = step.kind, tonumber(step.ms)
  job.overdue = now() + timeout / 1000 + SLACK
  timeout = timeout + 1 -- nginx's clock may be behind by so much, and would come too early
  local ok, err = true, nil
  if kind == CONNECT then
    if socket then socket:close() end
    local fresh
    socket, fresh = connect(timeout)
    if not job.op then return socket end
    if socket then
      library.buflock_op_connected(op, fresh and 1 or 0)
    else
      ok, err = nil, fresh
    end
  elseif kind == SEND then
    socket:settimeout(timeout)
    ok, err = socket:send(text(step.data, step.data_len))
  elseif kind == RECV then
    socket:settimeout(timeout)
    ok, err = socket:receiveany(4096)
    if ok and job.op then library.buflock_op_feed(op, ok, #ok) end
  else
    sleep(timeout / 1000)
  end
  if not ok and err ~= "timeout" and job.op then op_fail(op, err) end
  return socket
end

--- Drives an op to its end, and frees it. It yields, so it is only for phases that may.
---@param op ffi.cdata*
---@param token ffi.cdata*? room for the token of an acquire
---@param info ffi.cdata*? written where it is OK or BUSY
---@param holder ffi.cdata*? room for 128 bytes, with an inspect
---@param goes_on (fun(): boolean)? whether anybody is interested still
---@return integer status
---@return string? text of a failure
function _M.run(handle, op, token, info, holder, goes_on)
  local job = { op = gc(op, library.buflock_op_free), overdue = huge }
  op = job.op
  handle.jobs[job] = true
  local socket
  while true do
    local status = op_next(op, step)
    if status ~= OK or step.kind == DONE then
      -- From here to the return nothing yields: the light thread cannot be killed with a lock that nobody knows of.
      if socket then put_away(socket, status == OK and step.keep ~= 0) end
      if status == OK then status = library.buflock_op_finish(op, token, info) end
      if holder and status == BUSY then library.buflock_op_holder(op, holder, 128) end
      local failure = status < OK and text(library.buflock_op_error(op)) or nil
      handle.jobs[job], job.op = nil, nil
      free(op)
      return status, failure
    end
    socket = take(op, job, socket)
    if not job.op then
      if socket then socket:close() end
      return UNREACHABLE, "the worker was blocked for too long"
    end
    if goes_on and not goes_on() then library.buflock_op_cancel(op) end
  end
end

--- Frees the ops of light threads that were killed: what they hold, or may hold, is released with the next command.
function _M.sweep(handle)
  local time = now()
  for job in pairs(handle.jobs) do
    if job.overdue < time then
      local op = job.op
      handle.jobs[job], job.op = nil, nil
      free(op)
    end
  end
end

return _M
