-- One of three Tarantool instances, and the writers inside it: what bench/peers/tarantool.py starts.
--
--     tarantool tarantool_node.lua MEMBER DIRECTORY CONTROL_PORT QUORUM TIMEOUT_S PORT PORT PORT
--
-- Member 1 is the master; the others are read-only and follow it. Each connects to CONTROL_PORT of
-- the coordinator once it is up, says so, and answers one JSON object a line for each that it is
-- sent. It ends with that connection, so nothing outlives the coordinator.
local clock, fiber, json, socket = require('clock'), require('fiber'), require('json'), require('socket')

local HOST = '127.0.0.1'
local member, directory, control = tonumber(arg[1]), arg[2], tonumber(arg[3])
local quorum, timeout_s = tonumber(arg[4]), tonumber(arg[5])
local ports = {arg[6], arg[7], arg[8]}

local members = {}
for place, port in ipairs(ports) do members[place] = 'guest@' .. HOST .. ':' .. port end

box.cfg{
    listen = HOST .. ':' .. ports[member],
    work_dir = directory,
    wal_mode = 'fsync',
    memtx_memory = 1024 ^ 3,
    replication = members,
    read_only = member ~= 1,
    replication_synchro_quorum = quorum,
    replication_synchro_timeout = timeout_s,
    -- Also how long an instance waits before it looks again for another that is not up yet.
    replication_timeout = 0.2,
    feedback_enabled = false,
    log_level = 3,
}
-- At its default of 1 s a replica that is busy behind a burst would be dropped.
box.cfg{replication_timeout = 10}
if member == 1 then
    box.once('bench', function()
        box.schema.user.grant('guest', 'super', nil, nil, {if_not_exists = true})
        local space = box.schema.space.create('bench', {is_sync = true})
        space:create_index('primary', {parts = {1, 'unsigned'}})
    end)
end

local load = dofile(arg[0]:match('^(.*)/[^/]*$') .. '/tarantool_load.lua')
local asked = {}

-- A closed loop: so many writers, each with one transaction outstanding, on keys of its own.
function asked.load(request) return load.run(box.space.bench, request) end

-- How many of these keys hold this value, for whoever reads now.
local function seen(request)
    local count = 0
    for number = 0, request.writers - 1 do
        local row = box.space.bench:get(request.first + number)
        if row ~= nil and row[2] == request.value then count = count + 1 end
    end
    return count
end

-- One transaction of each writer, all at once; what readers see halfway through the time-out.
function asked.once(request)
    local waits_us, problems, confirmed, answered = {}, {}, 0, 0
    local began = clock.monotonic()
    local join = load.together(request.writers, function(number)
        local problem = load.replace(box.space.bench, request.first + number, request.value)
        answered = answered + 1
        waits_us[answered] = load.micros(clock.monotonic() - began)
        if problem == nil then
            confirmed = confirmed + 1
        else
            problems[problem] = (problems[problem] or 0) + 1
        end
    end)
    fiber.sleep(timeout_s / 2)
    local by_then, meanwhile = answered, seen(request)
    join(began + timeout_s + request.patience)
    for number = answered + 1, request.writers do
        waits_us[number] = load.micros(clock.monotonic() - began)
        problems['without an answer'] = request.writers - answered
    end
    setmetatable(problems, {__serialize = 'map'})
    return {
        waits_us = waits_us, problems = problems, confirmed = confirmed, answered = by_then,
        seen_meanwhile = meanwhile, seen_after = seen(request),
    }
end

asked.seen = function(request) return {seen = seen(request)} end

-- Members that follow with everything that this one has written. A burst leaves them behind.
function asked.followers()
    local count, mine = 0, box.info.id
    for _, each in pairs(box.info.replication) do
        local down = each.downstream
        if down ~= nil and down.status == 'follow' and down.vclock[mine] == box.info.lsn then
            count = count + 1
        end
    end
    return {followers = count}
end

setmetatable(asked, {__index = function(_, name) error('unknown request ' .. tostring(name)) end})

local connection = socket.tcp_connect(HOST, control)
if connection == nil then os.exit(3) end
connection:write(json.encode({member = member, version = _TARANTOOL}) .. '\n')
while true do
    local line = connection:read('\n')
    if line == nil or line == '' then os.exit(0) end
    local request = json.decode(line)
    local ok, answer = pcall(function() return asked[request.ask](request) end)
    if not ok then answer = {error = tostring(answer)} end
    connection:write(json.encode(answer) .. '\n')
end
