-- Writers in a process of their own, over one connection of net.box to the master.
--
--     tarantool tarantool_net.lua PORT WRITERS SECONDS KEYS BYTES PATIENCE
--
-- Prints what bench/peers/tarantool_load.lua found as one line of JSON.
local load = dofile(arg[0]:match('^(.*)/[^/]*$') .. '/tarantool_load.lua')
local connection = require('net.box').connect('127.0.0.1:' .. arg[1], {connect_timeout = 5})
local request = {
    writers = tonumber(arg[2]), seconds = tonumber(arg[3]), keys = tonumber(arg[4]),
    bytes = tonumber(arg[5]), patience = tonumber(arg[6]),
}
print(require('json').encode(load.run(connection.space.bench, request)))
os.exit(0)
