import { useEffect, useState } from 'preact/hooks'
import { Failure, metrics, type About } from './api'
import { parse, quantile, rate, value, type Sample } from './metrics'
import { Problem } from './problem'

const period = 2000 // milliseconds between two samples
const kept = 151 // samples: five minutes
const span = 5 // samples that a rate looks back
const least = 60_000 // milliseconds that a picture shows

interface Series {
  label: string
  of(before: Sample, after: Sample): number | undefined
}

interface Picture {
  title: string
  about: string
  series: Series[]
  show(n: number): string
}

const round = (n: number) => n.toLocaleString('en', { maximumFractionDigits: n < 10 ? 1 : 0 })
const perSecond = (n: number) => `${round(n)}/s`
const seconds = (n: number) => (n >= 1 ? `${round(n)} s` : n >= 1e-3 ? `${round(n * 1e3)} ms` : `${round(n * 1e6)} µs`)
function bytes(n: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB']
  let i = 0
  for (; n >= 1000 && i < units.length - 1; i++) n /= 1000
  return `${round(n)} ${units[i]}`
}

const group = 'rowkeeper_commit_group_mutations'
const commit = 'rowkeeper_commit_duration_seconds'

function share(over: string, under: string) {
  return (before: Sample, after: Sample) => {
    const n = rate(before, after, under)
    return n ? (rate(before, after, over) ?? 0) / n : undefined
  }
}

const now = (name: string) => (_: Sample, after: Sample) => value(after, name)

const pictures: Picture[] = [
  {
    title: 'Writes and commits', about: 'Writes that wait together share a commit.', show: perSecond,
    series: [
      { label: 'writes', of: (b, a) => rate(b, a, `${group}_sum`) },
      { label: 'commits', of: (b, a) => rate(b, a, `${group}_count`) },
    ],
  },
  {
    title: 'Group size', about: 'Writes in a commit.', show: round,
    series: [{ label: 'mean', of: share(`${group}_sum`, `${group}_count`) }],
  },
  {
    title: 'Commit latency', about: 'Until a commit is durable.', show: seconds,
    series: [
      { label: 'p99', of: (b, a) => quantile(b, a, commit, 0.99) },
      { label: 'median', of: (b, a) => quantile(b, a, commit, 0.5) },
    ],
  },
  {
    title: 'Wait for the lock', about: 'For other replicas; on SQLite, for its write-ahead log.', show: seconds,
    series: [{
      label: 'mean',
      of: share('rowkeeper_commit_lock_wait_seconds_sum', 'rowkeeper_commit_lock_wait_seconds_count'),
    }],
  },
  {
    title: 'Delivery lag', about: 'How long a known change waits for its delivery.', show: seconds,
    series: [{ label: 'now', of: now('rowkeeper_delivery_lag_seconds') }],
  },
  {
    title: 'Watches', about: 'Watches of the store that are open.', show: round,
    series: [{ label: 'open', of: now('rowkeeper_watchers') }],
  },
  {
    title: 'Size', about: 'Bytes of the tables. Dead ones are used again.', show: bytes,
    series: [
      { label: 'live', of: now('rowkeeper_database_bytes live') },
      { label: 'dead', of: now('rowkeeper_database_bytes dead') },
    ],
  },
  {
    title: 'Compaction', about: 'Revisions of the log that can be read, and those that wait for the sweep.', show: round,
    series: [
      {
        label: 'kept', of: (_, a) => {
          const head = value(a, 'rowkeeper_head_revision')
          const compacted = value(a, 'rowkeeper_compacted_revision')
          return head === undefined || compacted === undefined ? undefined : head - compacted
        },
      },
      { label: 'to sweep', of: now('rowkeeper_sweep_debt_revisions') },
    ],
  },
]

// Server draws the server's own metrics, live.
export function Server({ about }: { about: About | null }) {
  const [samples, setSamples] = useState<Sample[]>([])
  const [failure, setFailure] = useState<Failure | null>(null)
  useEffect(() => {
    const stop = new AbortController()
    const ask = async () => {
      try {
        const sample = parse(await metrics(stop.signal), performance.now())
        setSamples((old) => [...old, sample].slice(-kept))
        setFailure(null)
      } catch (e) {
        if (e instanceof Failure) setFailure(e)
      }
    }
    void ask()
    const timer = setInterval(() => { if (!document.hidden) void ask() }, period)
    return () => {
      clearInterval(timer)
      stop.abort()
    }
  }, [])
  const own = samples.length === 0 || samples.at(-1)!.values.size > 0
  return (
    <main class="server">
      <header>
        <h1>Server</h1>
        <p class="quiet">{about?.server}: the metrics of the process that answers, read each 2 seconds.</p>
      </header>
      {failure && (
        <Problem failure={failure} doing="see the server's metrics" />
      )}
      {failure?.code === 403 && (
        <p>
          A role gives this with <code>nonResourceURLs: ["/metrics"]</code> and <code>verbs: ["get"]</code>.
        </p>
      )}
      {!own && <p class="note">This server has no metrics of Rowkeeper.</p>}
      {samples.length > 0 && own && (
        <div class="pictures">
          {pictures.map((picture) => <Chart key={picture.title} picture={picture} samples={samples} />)}
        </div>
      )}
    </main>
  )
}

const width = 320
const height = 96

function Chart({ picture, samples }: { picture: Picture; samples: Sample[] }) {
  const lines = picture.series.map((series) => ({
    label: series.label,
    values: samples.map((sample, i) => series.of(samples[Math.max(0, i - span)], sample)),
  }))
  const seen = lines.flatMap((line) => line.values.filter((v) => v !== undefined))
  const top = nice(Math.max(...seen, 0))
  const until = samples.at(-1)!.at
  const shown = Math.min(Math.max(until - samples[0].at, least), period * (kept - 1))
  const x = (i: number) => width - ((until - samples[i].at) / shown) * width
  const y = (v: number) => height - 2 - (v / top) * (height - 8)
  const words = lines.map(({ label, values }) => {
    const n = values.at(-1)
    return `${label} ${n === undefined ? 'none' : picture.show(n)}`
  }).join(', ')
  return (
    <figure class="chart">
      <figcaption>
        <h2>{picture.title}</h2>
        <p class="quiet">{picture.about}</p>
        <p class="values">
          {lines.map(({ label, values }, i) => {
            const n = values.at(-1)
            return (
              <span key={label} class={`value series-${i}`}>
                <b>{n === undefined ? '–' : picture.show(n)}</b> {label}
              </span>
            )
          })}
        </p>
      </figcaption>
      <div class="plot">
        <svg viewBox={`0 0 ${width} ${height}`} preserveAspectRatio="none" role="img" aria-label={`${picture.title}: ${words}`}>
          <line class="grid" x1="0" x2={width} y1={y(top)} y2={y(top)} />
          <line class="grid" x1="0" x2={width} y1={y(top / 2)} y2={y(top / 2)} />
          <line class="axis" x1="0" x2={width} y1={y(0)} y2={y(0)} />
          {lines.map(({ label, values }, i) => parts(values).map((part) => {
            const points = part.map((k) => `${x(k).toFixed(1)},${y(values[k]!).toFixed(1)}`).join(' ')
            return (
              <g key={`${label} ${part[0]}`} class={`series-${i}`}>
                {i === 0 && (
                  <polygon class="area" points={`${x(part[0]).toFixed(1)},${y(0)} ${points} ${x(part.at(-1)!).toFixed(1)},${y(0)}`} />
                )}
                <polyline class="line" points={points} />
              </g>
            )
          }))}
        </svg>
        <span class="most quiet" aria-hidden="true">{seen.length > 0 ? picture.show(top) : ''}</span>
      </div>
      <p class="ends quiet" aria-hidden="true"><span>{Math.round(shown / 60_000)} min ago</span><span>now</span></p>
    </figure>
  )
}

// parts are the spans in which a series has values.
function parts(values: (number | undefined)[]): number[][] {
  const found: number[][] = []
  values.forEach((v, i) => {
    if (v === undefined) return
    const last = found.at(-1)
    if (last && last.at(-1) === i - 1) last.push(i)
    else found.push([i])
  })
  return found
}

// nice is a round number that is not smaller.
function nice(n: number): number {
  if (!(n > 0)) return 1
  const unit = 10 ** Math.floor(Math.log10(n))
  return [1, 2, 5, 10].map((m) => m * unit).find((m) => m >= n * 0.999)!
}
