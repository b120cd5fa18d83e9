import { useEffect, useRef, useState } from 'preact/hooks'
import { Failure, path, readHistory, type Change, type Kind } from './api'
import { Problem } from './problem'
import { Ago, Clock, useCalm, useTick } from './time'
import { Changed, rights, Verb, Who } from './timeline'

const spans: [string, string][] = [
  ['10m', '10 minutes'], ['1h', '1 hour'], ['6h', '6 hours'], ['24h', '1 day'], ['168h', '1 week'],
]

interface Row extends Change {
  of: Kind
}

const pageSize = 100
const most = 1000 // rows that are shown

interface Shown {
  kind: Kind
  kinds: Kind[]
  namespace: string
  every: boolean // all kinds are shown first
  version: number // rises when the collection has changed
  onOpen(kind: Kind, change: Change): void
}

// Changes is what has changed in a namespace, or everywhere: of one kind or of all.
export function Changes({ kind, kinds, namespace, every, version, onOpen }: Shown) {
  useTick(10_000)
  const [since, setSince] = useState('1h')
  const [all, setAll] = useState(every)
  const [rows, setRows] = useState<Row[] | null>(null)
  const [more, setMore] = useState(false)
  const [failure, setFailure] = useState<Failure | null>(null)
  const [refused, setRefused] = useState<string[]>([])
  const [turn, setTurn] = useState(0)
  const scope = kind.namespaced ? namespace : ''
  const question = `${all ? '' : path(kind)} ${scope} ${since}`
  const shown = useRef('')
  const calm = useCalm(version, 1000)

  // One kind is watched by the list beside. All kinds are asked from time to time.
  useEffect(() => {
    if (!all) return
    const timer = setInterval(() => { if (!document.hidden) setTurn((n) => n + 1) }, 5000)
    return () => clearInterval(timer)
  }, [all])
  useEffect(() => {
    const stop = new AbortController()
    if (shown.current !== question) {
      shown.current = question
      setRows(null)
    }
    const asked = all ? kinds.filter((k) => k.namespaced || !scope) : [kind]
    void (async () => {
      const found: Row[] = []
      const no: string[] = []
      let failed: Failure | null = null
      let cut = false
      for (const of of asked) {
        try {
          const answer = await readHistory(path(of, of.namespaced ? scope : '', '-'),
            all ? pageSize : pageSize * 2, { since }, stop.signal)
          for (const item of answer.items) found.push({ ...item, of })
          cut ||= !!answer.metadata.continue
        } catch (e) {
          if (stop.signal.aborted) return
          if (!(e instanceof Failure)) throw e
          failed = e
          no.push(of.resource)
        }
      }
      found.sort((a, b) => b.revision.length - a.revision.length || (a.revision < b.revision ? 1 : -1))
      setRows(found.slice(0, most))
      setMore(cut || found.length > most)
      setRefused(no)
      setFailure(no.length === asked.length ? failed : null)
    })()
    return () => stop.abort()
  }, [question, calm, turn])

  const place = scope ? `in ${scope}` : 'everywhere'
  return (
    <section class="changes">
      <header>
        <h1>What changed {place}</h1>
        <div class="bar">
          <label>
            Since{' '}
            <select value={since} onChange={(e) => setSince(e.currentTarget.value)}>
              {spans.map(([value, text]) => <option key={value} value={value}>{text} ago</option>)}
            </select>
          </label>
          <label>
            Of{' '}
            <select value={all ? 'all' : 'one'} onChange={(e) => setAll(e.currentTarget.value === 'all')}>
              <option value="one">{kind.resource}</option>
              <option value="all">all kinds</option>
            </select>
          </label>
        </div>
      </header>
      {failure && (
        <Problem failure={failure} doing={`see what changed ${place}`} history rights={all ? [] : rights(kind, scope)} />
      )}
      {!failure && rows === null && <p class="quiet">Reading the log…</p>}
      {!failure && rows?.length === 0 && <p class="quiet">Nothing has changed in this time.</p>}
      {!failure && rows && rows.length > 0 && (
        <table class="log">
          <caption class="unseen">Changes {place}, the newest first</caption>
          <thead>
            <tr><th scope="col">When</th><th scope="col">What</th><th scope="col">Object</th><th scope="col">Who</th><th scope="col">Fields</th></tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={`${row.of.resource} ${row.revision}`} data-revision={row.revision}>
                <td class="when"><Clock time={row.time} /> <span class="quiet"><Ago time={row.time} /></span></td>
                <td><Verb change={row} /></td>
                <td>
                  <button type="button" class="link" onClick={() => onOpen(row.of, row)}>
                    {all && <span class="quiet">{row.of.resource} </span>}
                    {!scope && row.namespace && <span class="quiet">{row.namespace}/</span>}{row.name}
                  </button>
                </td>
                <td><Who change={row} /></td>
                <td><Changed change={row} most={2} /></td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {more && <p class="quiet">The newest changes are shown. There are more in this time.</p>}
      {!failure && refused.length > 0 && (
        <p class="quiet">Left out, since their history cannot be read: {refused.join(', ')}.</p>
      )}
    </section>
  )
}
