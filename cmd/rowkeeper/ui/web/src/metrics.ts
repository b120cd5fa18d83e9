// Sample is what /metrics says at a moment: the sums of all label sets of a name, and for
// histograms the counts below each bound.
export interface Sample {
  at: number // milliseconds
  values: Map<string, number>
  buckets: Map<string, Map<number, number>>
}

const line = /^(rowkeeper_\w+)(?:\{(.*)\})? (\S+)/
const state = /(?:^|,)state="(\w+)"/
const bound = /(?:^|,)le="([^"]+)"/

// parse reads the server's own metrics. Sizes are told apart by their state.
export function parse(text: string, at: number): Sample {
  const sample: Sample = { at, values: new Map(), buckets: new Map() }
  for (const row of text.split('\n')) {
    const found = line.exec(row)
    if (!found) continue
    const [, name, labels = '', value] = found
    const le = bound.exec(labels)
    if (le && name.endsWith('_bucket')) {
      const base = name.slice(0, -'_bucket'.length)
      const of = sample.buckets.get(base) ?? new Map<number, number>()
      const limit = le[1] === '+Inf' ? Infinity : Number(le[1])
      of.set(limit, (of.get(limit) ?? 0) + Number(value))
      sample.buckets.set(base, of)
      continue
    }
    const of = state.exec(labels)
    const key = of ? `${name} ${of[1]}` : name
    sample.values.set(key, (sample.values.get(key) ?? 0) + Number(value))
  }
  return sample
}

export function value(sample: Sample, name: string): number | undefined {
  return sample.values.get(name)
}

// rate is the rise of a counter by second.
export function rate(before: Sample, after: Sample, name: string): number | undefined {
  if (after.at === before.at) return undefined
  const rise = (value(after, name) ?? NaN) - (value(before, name) ?? NaN)
  // A counter that falls belongs to a process that has begun anew.
  return rise >= 0 ? (rise * 1000) / (after.at - before.at) : undefined
}

// quantile is that of a histogram's observations between two samples, within its bucket linearly.
export function quantile(before: Sample, after: Sample, name: string, q: number): number | undefined {
  const old = before.buckets.get(name)
  const bounds = [...(after.buckets.get(name) ?? [])].sort(([a], [b]) => a - b)
    .map(([limit, n]) => [limit, n - (old?.get(limit) ?? 0)])
  const all = bounds.at(-1)?.[1] ?? 0
  if (!(all > 0)) return undefined
  let below = 0
  let from = 0
  for (const [limit, n] of bounds) {
    if (n >= q * all) {
      return limit === Infinity ? from : from + ((limit - from) * (q * all - below)) / (n - below || 1)
    }
    below = n
    from = limit
  }
  return from
}
