-- What take and charge have in common: a caller brings a floor along, and may act under a move. It follows state.lua.

local now, learned = tonumber(ARGV[1]), false -- whether a floor has changed anything

-- arrive is enter with a floor. It also puts the fence into the bodies.
local function arrive(bodies, floors, mover, version, step, keep, charges)
  local refusal, fence = enter(bodies, now, mover, version, step, keep, charges)
  if fence and mover == TOPOLOGY then -- the fence of a migration moves with the key, and may freeze this place
    local stop, adopted, sealed = parse_fence(bodies[MIGRATION], now)
    local fstop, fadopted, fsealed = parse_fence(floors[MIGRATION], now)
    stop, adopted, sealed = math.max(stop, fstop), math.max(adopted, fadopted), math.max(sealed, fsealed)
    refusal = charges and frozen(MIGRATION, adopted, sealed, 0)
    bodies[MIGRATION] = format_fence(stop, adopted, sealed) -- which is left out where there is none: it is over
  end
  if fence and not refusal then bodies[mover] = fence end
  return refusal, fence
end

-- join_* return what two bodies of one entry know together.

local UNITS = {ms = 1, s = 1000, m = 60000, h = 3600000}

local function join_fixed(id, body, floor)
  local reset, spent, back, void = match(body, '^(%d+),' .. COUNT .. '$')
  local r, s, b, v = match(floor, '^(%d+),' .. COUNT .. '$')
  back, void, b, v = tonumber(back) or 0, tonumber(void) or 0, tonumber(b) or 0, tonumber(v) or 0
  local window, unit = match(id, '^%a(%d+)(%a+)$')
  local lost = math.abs(r - reset) < window * UNITS[unit] -- one of them where the other was opened; else that follows it
  if tonumber(r) > tonumber(reset) then
    local before = lost and spent - back or 0 -- miniredis' Lua would read the new spent in one assignment with it
    reset, spent, back, void = r, s, b, v
    s, b, v = before, 0, 0
  elseif r ~= reset then
    s, b, v = lost and s - b or 0, 0, 0
  end
  return reset .. ',' .. count(math.max(spent, s), math.max(back, b), math.max(void, v))
end

local function join_sliding(id, body, floor)
  local window, unit, precision, fine = match(id, '^s(%d+)(%a+)~(%d+)(%a+)$')
  precision = precision * UNITS[fine]
  local size = window * UNITS[unit] / precision
  local stop, spent, back, void = parse_sliding(body)
  local fstop, fspent, fback, fvoid = parse_sliding(floor)
  local last = math.max(stop, fstop)
  local behind, fbehind = (last - stop) / precision, (last - fstop) / precision
  local function newer(ours, theirs)
    local larger = {}
    for j = 1, size do larger[j] = math.max(ours[j - behind] or 0, theirs[j - fbehind] or 0) end
    return larger
  end
  return format_sliding(last, newer(spent, fspent), newer(back, fback), newer(void, fvoid))
end

local function join_bucket(body, floor)
  local a, af, c, cf, p, pf, born, seen = parse_bucket(body)
  local fa, faf, fc, fcf, fp, fpf, fborn, fseen = parse_bucket(floor)
  if born == fborn then
    if less(c, cf, fc, fcf) then c, cf = fc, fcf end
    seen = math.max(seen, fseen)
  elseif born > fborn then -- of two lives the later one; it is not full before the peak of the earlier
    fa, faf = fp, fpf
  else
    a, af, c, cf, born, seen = p, pf, fc, fcf, fborn, fseen
  end
  if less(a, af, fa, faf) then a, af = fa, faf end
  if less(p, pf, fp, fpf) then p, pf = fp, fpf end
  return format_bucket(a, af, c, cf, p, pf, born, seen)
end

-- join ignores what is over; nil for nothing.
local function join(id, body, floor)
  if body and ends(id, body) <= now then body = nil end
  if not floor or ends(id, floor) <= now then return body end
  local kind, joined = byte(id), floor
  if body then
    joined = kind == SLIDING and join_sliding(id, body, floor) or kind == BUCKET and join_bucket(body, floor)
      or join_fixed(id, body, floor)
  end
  learned = learned or joined ~= body
  return joined
end

-- append_others appends to out the entries of others than the limits ids: a fence, another policy's; two may be alive during a
-- deploy. With an adoption come those of the floors. It returns when the last one is over (us), or last.
local function append_others(out, last, ids, bodies, floors)
  if floors then
    for j = 1, #ids do floors[ids[j]] = nil end
    floors[MIGRATION], floors[TOPOLOGY] = nil, nil
    for id, floor in pairs(floors) do bodies[id] = join(id, bodies[id], floor) end
  end
  for j = 1, #ids do bodies[ids[j]] = nil end
  for id, body in pairs(bodies) do
    local stop = ends(id, body)
    if stop > now then
      out[#out + 1] = id .. ':' .. body .. ';'
      last = math.max(last, stop)
    end
  end
  return last
end
