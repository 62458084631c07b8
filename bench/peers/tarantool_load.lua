-- A closed loop of writers on a space, inside the master or over net.box: what a space is asked for
-- is the same. `request` has writers, seconds, keys (of each writer's own), bytes of a value, and
-- `patience`: so many seconds after the end a writer without an answer is given up. Over net.box
-- one was seen that got none, beyond every time-out of the server's.
local clock, fiber = require('clock'), require('fiber')

local load = {}

function load.micros(seconds) return math.floor(seconds * 1e6 + 0.5) end

-- Runs `each` in so many fibers at once, numbered from 0; the result waits for all of them, but not
-- beyond that moment of the monotonic clock.
function load.together(count, each)
    local running, over = count, fiber.cond()
    for number = 0, count - 1 do
        fiber.new(function()
            each(number)
            running = running - 1
            over:signal()
        end)
    end
    return function(until_s)
        -- Read once: a second reading may lie beyond the end, and wait() refuses a negative time.
        local left_s = until_s - clock.monotonic()
        while running > 0 and left_s > 0 do
            over:wait(left_s)
            left_s = until_s - clock.monotonic()
        end
    end
end

-- One replace; nil, or why not.
function load.replace(space, key, value)
    local ok, problem = pcall(space.replace, space, {key, value})
    if not ok then return tostring(problem) end
end

function load.run(space, request)
    local value = string.rep('v', request.bytes)
    local took_us, refused_us, problems, late, since = {}, {}, {}, 0, {}
    local until_s, given_up = clock.monotonic() + request.seconds, false
    local function refused(began, ended, problem)
        refused_us[#refused_us + 1] = load.micros(ended - began)
        problems[problem] = (problems[problem] or 0) + 1
    end
    local join = load.together(request.writers, function(number)
        local first, turn = number * request.keys, 0
        local began = clock.monotonic()
        while began < until_s do
            since[number] = began
            local problem = load.replace(space, first + turn % request.keys, value)
            local ended = clock.monotonic()
            if given_up then return end
            since[number] = nil
            if problem == nil then
                took_us[#took_us + 1] = load.micros(ended - began)
                if ended > until_s then late = late + 1 end
            else
                refused(began, ended, problem)
            end
            began, turn = ended, turn + 1
        end
    end)
    join(until_s + request.patience)
    given_up = true
    for _, began in pairs(since) do refused(began, clock.monotonic(), 'without an answer') end
    setmetatable(problems, {__serialize = 'map'})
    return {took_us = took_us, refused_us = refused_us, problems = problems, late = late}
end

return load
