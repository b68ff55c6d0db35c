--- A page from the cache, or built: the workflow that lua-resty-lock's document recommends. Only the require is ours.
local resty_lock = require "resty.buflock.lock"

local cache, count = ngx.shared.my_cache, ngx.shared.my_count

local function build(key)
  count:incr("builds", 1, 0)
  ngx.sleep(0.2) -- a slow backend
  return "page " .. key
end

local function fail(...)
  ngx.log(ngx.ERR, ...)
  ngx.status = 503
  ngx.say(...)
end

local function answer(page, waited)
  ngx.header["X-Waited"] = waited
  ngx.say(page)
end

local function without_lock(key)
  local page = cache:get(key)
  if not page then
    page = build(key)
    cache:set(key, page, 1)
  end
  answer(page, 0)
end

local function with_lock(key)
  -- step 1: look into the cache
  local page = cache:get(key)
  if page then return answer(page, 0) end

  -- step 2: a miss; one gets the lock, the others wait for it
  local lock, err = resty_lock:new("my_locks")
  if not lock then return fail("failed to create lock: ", err) end
  local elapsed
  elapsed, err = lock:lock(key)
  if not elapsed then return fail("failed to acquire the lock: ", err) end

  -- step 3: look again, somebody may have built it meanwhile; step 4: build it
  page = cache:get(key)
  if not page then
    page = build(key)
    cache:set(key, page, 1)
  end

  local ok
  ok, err = lock:unlock()
  if not ok then return fail("failed to unlock: ", err) end
  answer(page, lock.waited)
end

local page_of = ngx.var.arg_lock == "off" and without_lock or with_lock
page_of(ngx.var.arg_key)
