-- Each request is a message of its own.
local threads = 0

function setup(thread)
    thread:set("id", threads)
    threads = threads + 1
end

function init(args)
    sent = 0
    round = args[1]
end

function request()
    sent = sent + 1
    local headers = { ["Idempotency-Key"] = round .. "-" .. id .. "-" .. sent, ["Content-Type"] = "application/json" }
    return wrk.format("POST", nil, headers, '{"order":' .. sent .. ',"customer":"c-17","cents":4200}')
end

function done(summary)
    local e = summary.errors
    local errors = e.connect + e.read + e.write + e.status + e.timeout
    io.write(string.format('{"requests":%d,"micros":%d,"errors":%d}\n', summary.requests, summary.duration, errors))
end
