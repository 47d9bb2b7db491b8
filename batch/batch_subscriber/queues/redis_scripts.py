"""The steps of the Redis queue, each one a script on the server.

KEYS of every script: stream of jobs, sorted set of delayed jobs (score: due time, ms), sorted set of known
jobs (score: submitted_at), hash of dead letters, sorted set of their keys. ARGV[1] of those that receive or
hold is the consumer group.

A held entry's idle time is set so that it reaches the horizon when its visibility time-out ends: stale means
idle for the horizon, whatever time-out each delivery has. A delivery is named by the entry and its delivery
count, so that a late one cannot touch a later one's job.
"""

from typing import Final

from batch_subscriber.redis_link import Script

#: Idle time of an entry whose visibility time-out has ended, ms; the longest time-out.
HORIZON_MS: Final = 7 * 24 * 3_600_000

#: ARGV: bound, then for each job its key, submitted_at and JSON. Returns {accepted?, entries there are}.
PUT: Final = Script.of("""
local new, seen = {}, {}
for i = 2, #ARGV, 3 do
  if not seen[ARGV[i]] and not redis.call('ZSCORE', KEYS[3], ARGV[i]) then
    seen[ARGV[i]] = true
    new[#new + 1] = i
  end
end
local have = redis.call('XLEN', KEYS[1]) + redis.call('ZCARD', KEYS[2]) + redis.call('HLEN', KEYS[4])
if have + #new > tonumber(ARGV[1]) then return {0, have} end
for _, i in ipairs(new) do
  redis.call('ZADD', KEYS[3], ARGV[i + 1], ARGV[i])
  redis.call('XADD', KEYS[1], '*', 'job', ARGV[i + 2])
end
return {1, have + #new}
""")

#: ARGV: group, limit, visibility in ms, horizon. Returns {last id, ms to the next delayed job or -1,
#: {id, count, fields}...}.
RECEIVE: Final = Script.of("""
local group, limit = ARGV[1], tonumber(ARGV[2])
local idle, horizon = tonumber(ARGV[4]) - tonumber(ARGV[3]), ARGV[4]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, limit + 100)) do
  local at = string.find(member, '\\n', 1, true)
  redis.call('XADD', KEYS[1], '*', 'job', string.sub(member, at + 1), 'n', string.sub(member, 1, at - 1))
  redis.call('ZREM', KEYS[2], member)
end
local has_group = false
for _, one in ipairs(redis.call('EXISTS', KEYS[1]) == 1 and redis.call('XINFO', 'GROUPS', KEYS[1]) or {}) do
  has_group = has_group or one[2] == group
end
if not has_group then redis.call('XGROUP', 'CREATE', KEYS[1], group, '0', 'MKSTREAM') end
local taken = {}
for _, stale in ipairs(redis.call('XPENDING', KEYS[1], group, 'IDLE', horizon, '-', '+', limit)) do
  local claimed = redis.call('XCLAIM', KEYS[1], group, 'subscriber', 0, stale[1], 'IDLE', idle)
  if claimed[1] then
    taken[#taken + 1] = {stale[1], stale[4] + 1, claimed[1][2]}
  else
    redis.call('XACK', KEYS[1], group, stale[1])
  end
end
if #taken < limit then
  local read = redis.call(
    'XREADGROUP', 'GROUP', group, 'subscriber', 'COUNT', limit - #taken, 'STREAMS', KEYS[1], '>')
  if read then
    for _, entry in ipairs(read[1][2]) do
      redis.call('XCLAIM', KEYS[1], group, 'subscriber', 0, entry[1], 'IDLE', idle, 'JUSTID')
      taken[#taken + 1] = {entry[1], 1, entry[2]}
    end
  end
end
local last, info = '0-0', redis.call('XINFO', 'STREAM', KEYS[1])
for i = 1, #info, 2 do
  if info[i] == 'last-generated-id' then last = info[i + 1] end
end
local following = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
return {last, following[2] and math.max(0, following[2] - now) or -1, taken}
""")

_HELD: Final = """
local function held(id, count)
  local found = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1)
  return found[1] and found[1][4] == tonumber(count)
end
local function leave(id)
  redis.call('XACK', KEYS[1], ARGV[1], id)
  redis.call('XDEL', KEYS[1], id)
end
"""

#: ARGV: group, visibility in ms, horizon, then for each delivery its id and count. Returns the places (from
#: 0) of those that are lost.
EXTEND: Final = Script.of(
    _HELD
    + """
local lost, idle = {}, tonumber(ARGV[3]) - tonumber(ARGV[2])
for i = 4, #ARGV, 2 do
  if held(ARGV[i], ARGV[i + 1]) then
    redis.call('XCLAIM', KEYS[1], ARGV[1], 'subscriber', 0, ARGV[i], 'IDLE', idle, 'JUSTID')
  else
    lost[#lost + 1] = (i - 4) / 2
  end
end
return lost
"""
)

#: ARGV: group, id, count, key of the job. Returns 1 when the job was held.
ACK: Final = Script.of(
    _HELD
    + """
if not held(ARGV[2], ARGV[3]) then return 0 end
leave(ARGV[2])
redis.call('ZREM', KEYS[3], ARGV[4])
return 1
"""
)

#: ARGV: group, id, count, delay in ms, deliveries so far, JSON of the job.
NACK: Final = Script.of(
    _HELD
    + """
if not held(ARGV[2], ARGV[3]) then return 0 end
leave(ARGV[2])
local delay = tonumber(ARGV[4])
if delay > 0 then
  local time = redis.call('TIME')
  local due = time[1] * 1000 + math.floor(time[2] / 1000) + delay
  redis.call('ZADD', KEYS[2], due, ARGV[5] .. '\\n' .. ARGV[6])
else
  redis.call('XADD', KEYS[1], '*', 'job', ARGV[6], 'n', ARGV[5])
end
return 1
"""
)

#: ARGV: group, id, count, key of the job, key of the letter, JSON of the letter.
BURY: Final = Script.of(
    _HELD
    + """
if redis.call('HSETNX', KEYS[4], ARGV[5], ARGV[6]) == 1 then redis.call('ZADD', KEYS[5], 0, ARGV[5]) end
if held(ARGV[2], ARGV[3]) then
  leave(ARGV[2])
  redis.call('ZREM', KEYS[3], ARGV[4])
end
return 1
"""
)

#: ARGV: group. Returns {entries, held ones, delayed jobs, submitted_at of the oldest known one or '',
#: id of the first entry or ''}.
BACKLOG: Final = Script.of("""
if redis.call('EXISTS', KEYS[1]) == 0 then return {0, 0, redis.call('ZCARD', KEYS[2]), '', ''} end
local held = 0
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local named = {}
  for i = 1, #group, 2 do named[group[i]] = group[i + 1] end
  if named['name'] == ARGV[1] then held = named['pending'] end
end
local oldest = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)
local count, delayed = redis.call('XLEN', KEYS[1]), redis.call('ZCARD', KEYS[2])
return {count, held, delayed, oldest[2] or '', first[1] and first[1][1] or ''}
""")

#: ARGV: key above which to begin (or ''), limit. Returns their JSON.
LETTERS: Final = Script.of("""
local above = ARGV[1] == '' and '-' or '(' .. ARGV[1]
local keys = redis.call('ZRANGEBYLEX', KEYS[5], above, '+', 'LIMIT', 0, ARGV[2])
if #keys == 0 then return {} end
return redis.call('HMGET', KEYS[4], unpack(keys))
""")

#: ARGV: key. Returns 1 when there was one.
DROP: Final = Script.of("""
redis.call('ZREM', KEYS[5], ARGV[1])
return redis.call('HDEL', KEYS[4], ARGV[1])
""")
