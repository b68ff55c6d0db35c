--- A page from a cache of files that programs in several languages share, in nginx. What is missing one builds, the
--- others wait.
local pages = assert(require("resty.buflock").new(ngx.var.lock_url, { ttl = 10 }))
local dir = ngx.var.page_dir

local function cached(key)
  local file = io.open(dir .. "/" .. key)
  if not file then return nil end
  local page = file:read("*l")
  file:close()
  return page
end

local function build(key)
  local count = assert(io.open(dir .. "/builds", "a"))
  count:write(key, " nginx\n")
  count:close()
  ngx.sleep(0.05)
  return "page " .. key
end

-- In one step, so that nobody sees half of it.
local function publish(key, page)
  local path = dir .. "/" .. key
  local part = path .. "." .. ngx.worker.pid()
  local file = assert(io.open(part, "w"))
  file:write(page, "\n")
  file:close()
  assert(os.rename(part, path))
end

local page, err, detail = pages:fetch(ngx.var.arg_key, { wait = 5, get = cached, build = build, set = publish })
ngx.say(page or (err .. ": " .. (detail or "")))
