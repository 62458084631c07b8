-- Compare and swap of ONE key for wrk, in the words of etcd's JSON gateway. See bench/cas.py.
--   wrk -tN -cN -s cas.lua URL -- loop|log
-- One thread for each connection: a caller has its own memory. BASE64 of "hot" is aG90.

local threads = {}

function setup(thread)
   threads[#threads + 1] = thread
   thread:set('number', #threads)
end

local headers = { ['Content-Type'] = 'application/json' }
local known, in_log = '0', false
won, tried, odd = 0, 0, 0

function init(arguments)
   in_log = arguments[1] == 'log'
end

local function txn(compare)
   return wrk.format('POST', '/v3/kv/txn', headers, '{"compare":[{"key":"aG90",' .. compare
      .. '}],"success":[{"request_put":{"key":"aG90","value":"MTIzNA==","prev_kv":'
      .. tostring(in_log) .. '}}],"failure":[{"request_range":{"key":"aG90"}}]}')
end

function request()
   if in_log then
      return txn('"target":"VERSION","result":"GREATER","version":"0"')
   end
   return txn('"target":"MOD","result":"EQUAL","mod_revision":"' .. known .. '"')
end

function response(status, _, body)
   if status ~= 200 then
      odd = odd + 1
      return
   end
   tried = tried + 1
   if body:find('"succeeded":true', 1, true) then
      won = won + 1
      known = body:match('"revision":"(%d+)"') or known
   else
      known = body:match('"mod_revision":"(%d+)"') or known
   end
end

function done(summary, latency, _)
   local all_won, all_tried, all_odd = 0, 0, 0
   for _, thread in ipairs(threads) do
      all_won = all_won + thread:get('won')
      all_tried = all_tried + thread:get('tried')
      all_odd = all_odd + thread:get('odd')
   end
   io.write(string.format('RESULT %d %d %d %d\n', all_won, all_tried, all_odd, summary.duration))
end
