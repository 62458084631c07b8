-- Requests for wrk: puts and gets in the words of etcd's JSON gateway, and transactions of the limbo
-- (of one key, in the space "bench"). See bench/wrk.py.
--   wrk ... -s wrk.lua URL -- put|get|get-serializable|limbo KEYS VALUE_BYTES [SEED]
-- With a seed each key is as likely as any other, and every request is made anew, however few keys
-- there are: so the generator costs the same with few keys and with many.

local letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'

local function letter(number)
   return letters:sub(number + 1, number + 1)
end

local function base64(text)
   local out = {}
   for at = 1, #text, 3 do
      local a, b, c = text:byte(at, at + 2)
      local bits = a * 65536 + (b or 0) * 256 + (c or 0)
      out[#out + 1] = letter(math.floor(bits / 262144)) .. letter(math.floor(bits / 4096) % 64)
         .. (b and letter(math.floor(bits / 64) % 64) or '=') .. (c and letter(bits % 64) or '=')
   end
   return table.concat(out)
end

local paths = { put = '/v3/kv/put', limbo = '/v1/limbo/submit' }
local headers = { ['Content-Type'] = 'application/json' }
local word, keys, value
local kept, at, step = {}, 0, 7919
local drawn = false

-- What is kept would not fit beside the servers if there are very many keys.
local kept_max = 10000

local function built(number)
   local body = '{"key":"' .. base64(string.format('key-%010d', number)) .. '"'
   if word == 'put' or word == 'limbo' then
      body = body .. ',"value":"' .. value .. '"'
   elseif word == 'get-serializable' then
      body = body .. ',"serializable":true'
   end
   body = body .. '}'
   if word == 'limbo' then
      body = '{"writes":[' .. body:gsub('^{', '{"space":"bench",') .. ']}'
   end
   return wrk.format('POST', paths[word] or '/v3/kv/range', headers, body)
end

function init(arguments)
   word, keys = arguments[1], tonumber(arguments[2])
   value = base64(string.rep('v', tonumber(arguments[3])))
   if arguments[4] then
      drawn = true
      math.randomseed(tonumber(arguments[4]))
   else
      for number = 0, keys <= kept_max and keys - 1 or -1 do
         kept[number] = built(number)
      end
   end
   at = math.random(0, keys - 1)
end

-- A prime step visits every key before it comes back to the first.
function request()
   if drawn then
      return built(math.random(0, keys - 1))
   end
   at = (at + step) % keys
   return kept[at] or built(at)
end

function done(summary, latency, _)
   local errors = summary.errors
   io.write(string.format('RESULT %d %d %.3f %.3f %.3f %d %d\n', summary.requests,
      summary.duration, latency:percentile(50) / 1000, latency:percentile(99) / 1000,
      latency.max / 1000, errors.status,
      errors.timeout + errors.read + errors.write + errors.connect))
end
