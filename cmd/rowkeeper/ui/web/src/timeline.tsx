import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { Failure, path, readHistory, type Change, type Kind, type Right } from './api'
import { Diff, lines, State } from './diff'
import { Problem } from './problem'
import { Ago, ago, Clock, exactly, useCalm, useTick } from './time'
import { Undo } from './undo'

// rights are what the history of an object needs, or that of a collection if it has no name.
export function rights(kind: Kind, namespace: string, name?: string): Right[] {
  const scope = { group: kind.group, resource: kind.resource, namespace: namespace || undefined, name }
  return [{ verb: name ? 'get' : 'list', ...scope }, { verb: 'get', subresource: 'history', ...scope }]
}

// Who has made a change, as far as the log tells.
export function Who({ change }: { change: Change }) {
  if (change.user) {
    return (
      <span class="who">
        <b>{change.user}</b>{change.manager && <span class="quiet"> with {change.manager}</span>}
      </span>
    )
  }
  return <span class="who">{change.manager ? <>{change.manager}</> : <span class="quiet">not recorded</span>}</span>
}

export function Verb({ change }: { change: Change }) {
  return <span class={`verb ${change.verb}`}>{change.verb}</span>
}

export function Changed({ change, most }: { change: Change; most: number }) {
  // The generation tells nothing beside what has raised it.
  const paths = (change.changed ?? []).filter((path, _, all) => path !== 'metadata.generation' || all.length === 1)
  if (paths.length === 0) return null
  return (
    <span class="paths" title={paths.join('\n')}>
      {paths.slice(0, most).map((path) => <code key={path}>{path}</code>)}
      {paths.length > most && <span class="quiet">and {paths.length - most} more</span>}
    </span>
  )
}

function described(change: Change): string {
  const by = change.user || change.manager
  return `revision ${change.revision}, ${change.verb}${by ? ` by ${by}` : ''}, ${ago(change.time)}`
}

interface Loaded {
  items: Change[] // the newest first
  token: string
  omitted: boolean
}

const pageSize = 50
const none: Loaded = { items: [], token: '', omitted: false }

// useHistory follows the history of an object. version is another one when the object may have
// changed.
function useHistory(kind: Kind, namespace: string, name: string, version: string) {
  const at = path(kind, namespace, name)
  const [loaded, set] = useState(none)
  const [failure, fail] = useState<Failure | null>(null)
  const [busy, setBusy] = useState(true)
  const shown = useRef(at)

  const load = async (query: Record<string, string>, take: (old: Loaded, fresh: Loaded) => Loaded) => {
    setBusy(true)
    try {
      const answer = await readHistory(at, pageSize, query)
      if (shown.current !== at) return
      const fresh = {
        items: answer.items, token: answer.metadata.continue ?? '',
        omitted: !!answer.metadata.omitted,
      }
      set((old) => take(old, fresh))
      fail(null)
    } catch (e) {
      if (shown.current === at && e instanceof Failure) fail(e)
    } finally {
      if (shown.current === at) setBusy(false)
    }
  }
  useEffect(() => {
    if (shown.current !== at) {
      shown.current = at
      set(none)
      fail(null)
    }
    void load({}, (old, fresh) => {
      const known = fresh.items.findIndex((item) => item.revision === old.items[0]?.revision)
      // The rows that were loaded stay, unless there is a gap before them.
      return known < 0 ? fresh : { ...old, items: [...fresh.items.slice(0, known), ...old.items] }
    })
  }, [at, version])
  const older = () => {
    if (!busy && loaded.token) {
      void load({ continue: loaded.token }, (old, fresh) => ({
        ...fresh, items: [...old.items, ...fresh.items], omitted: old.omitted || fresh.omitted,
      }))
    }
  }
  return { ...loaded, failure, busy, older }
}

interface Shown {
  kind: Kind
  namespace: string
  name: string
  version: string
  at: string // the revision that is shown; '' for the newest
  onAt(revision: string): void
  tell(text: string): void
}

// Timeline is the history of an object: its changes, its state at each, what differs, and an undo.
export function Timeline({ kind, namespace, name, version, at, onAt, tell }: Shown) {
  useTick(10_000)
  const { items, token, omitted, failure, busy, older } = useHistory(kind, namespace, name, useCalm(version, 300))
  const [base, setBase] = useState('previous')
  const [all, setAll] = useState(false)
  const [undoing, setUndoing] = useState<Change | null>(null)
  const found = at ? items.findIndex((item) => item.revision === at) : 0
  const index = Math.max(0, found)
  const selected = items[index]
  const last = items.length - 1

  // What stands before the last row that is loaded, and a row that a link names, are on older
  // pages.
  useEffect(() => {
    if (items.length > 0 && (found < 0 || index === last)) older()
  }, [items, found, index, token, busy])
  const newest = items[0]?.revision
  useEffect(() => {
    if (newest) tell(`${name}: ${described(items[0])}`)
  }, [newest])

  if (failure && items.length === 0) {
    return <Problem failure={failure} doing={`see the history of ${name}`} history rights={rights(kind, namespace, name)} />
  }
  const left = omitted && (
    <p class="quiet">
      Rows of an earlier object of this name are left out. Whoever may
      get <code>{kind.resource}/earlierhistory</code> sees them.
    </p>
  )
  if (!selected) return <>{left}<p class="quiet">{busy ? 'Reading the history…' : left ? '' : 'The log has no row of this name.'}</p></>
  const select = (i: number) => onAt(i <= 0 ? '' : items[Math.min(i, last)].revision)
  const replaced = (item: Change) => item.earlier && item.uid !== items[0].uid
  const possible = kind.writable && !!selected.object && (index > 0 || selected.verb === 'delete')
  return (
    <>
      {failure && <Problem failure={failure} doing={`see the history of ${name}`} rights={rights(kind, namespace, name)} />}
      {found < 0 && !busy && <p class="note">The log has no revision {at} of this object. The newest one is shown.</p>}
      <div class="slider">
        <button type="button" class="step" aria-label="Older revision" disabled={index === last && !token} onClick={() => select(index + 1)}>‹</button>
        <div class="track">
          <input
            type="range" min={0} max={Math.max(last, 1)} value={Math.max(last, 1) - index} disabled={last < 1}
            aria-label="Point in time" aria-valuetext={described(selected)}
            onInput={(e) => select(Math.max(last, 1) - Number(e.currentTarget.value))}
          />
          <div class="ticks" aria-hidden="true">
            {items.length <= 80 && items.map((item, i) => (
              <i key={item.revision} class={item.verb} style={{ left: `${last < 1 ? 100 : 100 - (i / last) * 100}%` }} />
            ))}
          </div>
          <div class="ends" aria-hidden="true">
            <span>{token ? 'older…' : <Ago time={items[last].time} />}</span>
            <span>now</span>
          </div>
        </div>
        <button type="button" class="step" aria-label="Newer revision" disabled={index === 0} onClick={() => select(index - 1)}>›</button>
      </div>
      <div class="split">
        <div class="past">
          <Rows items={items} index={index} select={select} label={`Changes of ${name}, the newest first`} />
          {token && <button type="button" class="more" disabled={busy} onClick={older}>Older changes</button>}
          {left}
        </div>
        <article class="state" aria-label={`State at revision ${selected.revision}`}>
          <header>
            <div>
              <h3>
                Revision <span class="revision" data-revision={selected.revision}>{selected.revision}</span>{' '}
                {index === 0 && <span class="badge">newest</span>}
                {replaced(selected) && <span class="badge warn">an earlier object</span>}
              </h3>
              <p>
                <Verb change={selected} /> <Who change={selected} />,{' '}
                <time dateTime={selected.time}>{exactly(selected.time)}</time>
                {selected.auditID && <span class="quiet" title="Audit id"> · <code>{selected.auditID}</code></span>}
              </p>
            </div>
            <button
              type="button" class="primary" disabled={!possible || selected.asStored}
              title={selected.asStored ? 'The server no longer serves the version of this row' : undefined}
              onClick={() => setUndoing(selected)}
            >
              {items[0].verb === 'delete' ? 'Bring this back…' : 'Undo to this…'}
            </button>
          </header>
          <div class="bar">
            <label>
              Compare with{' '}
              <select value={base} onChange={(e) => setBase(e.currentTarget.value)}>
                <option value="previous">the revision before</option>
                <option value="newest">the newest</option>
                <option value="none">nothing: show all of it</option>
                <optgroup label="A revision">
                  {items.map((item) => (
                    <option key={item.revision} value={item.revision}>
                      {item.revision} · {item.verb} · {item.user || item.manager || '?'} · {ago(item.time)}
                    </option>
                  ))}
                </optgroup>
              </select>
            </label>
            <label>
              <input type="checkbox" checked={all} onChange={(e) => setAll(e.currentTarget.checked)} />{' '}
              all metadata
            </label>
          </div>
          {selected.asStored && (
            <p class="note">The server no longer serves the version in which this row was written. It is shown as it is stored.</p>
          )}
          {selected.error && <p class="note">{selected.error}</p>}
          <Content items={items} index={index} base={base} all={all} loading={!!token} />
        </article>
      </div>
      {undoing && (
        <Undo kind={kind} namespace={namespace} name={name} change={undoing} onClose={(done) => {
          setUndoing(null)
          if (done) {
            tell(`${name} is as it was at revision ${undoing.revision}`)
            onAt('')
          }
        }} />
      )}
    </>
  )
}

function Content({ items, index, base, all, loading }: {
  items: Change[]; index: number; base: string; all: boolean; loading: boolean
}) {
  const selected = items[index]
  const text = (change?: Change) => lines(change && change.verb !== 'delete' ? change.object : null, all)
  const other = base === 'previous' ? items[index + 1]
    : base === 'newest' ? items[0] : items.find((item) => item.revision === base)
  const [before, after] = useMemo(() => [text(other), text(selected)], [other, selected, all])
  if (base === 'none') {
    return (
      <>
        {selected.verb === 'delete' && <p class="note">This is the state in which it was deleted.</p>}
        <State text={lines(selected.object, all)} label={`State at revision ${selected.revision}`} />
      </>
    )
  }
  if (base === 'previous' && !other && selected.verb !== 'create') {
    if (loading) return <p class="quiet">Reading the revision before…</p>
    return (
      <>
        <p class="note">The log no longer has the revision before. This is the state as a whole.</p>
        <State text={lines(selected.object, all)} label={`State at revision ${selected.revision}`} />
      </>
    )
  }
  const label = `From ${other ? `revision ${other.revision}` : 'nothing'} to revision ${selected.revision}`
  return (
    <>
      <p class="quiet direction">{label}</p>
      <Diff before={before} after={after} label={label} />
    </>
  )
}

function Rows({ items, index, select, label }: {
  items: Change[]; index: number; select(i: number): void; label: string
}) {
  const box = useRef<HTMLOListElement>(null)
  useEffect(() => {
    box.current?.children[index]?.scrollIntoView({ block: 'nearest' })
  }, [index])
  const keys: Record<string, number> = {
    ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: items.length - 1,
    PageDown: index + 10, PageUp: index - 10,
  }
  return (
    <ol
      class="rows" role="listbox" tabIndex={0} ref={box} aria-label={label}
      aria-activedescendant={`change-${items[index].revision}`}
      onKeyDown={(e) => {
        if (!(e.key in keys) || e.ctrlKey || e.metaKey || e.altKey) return
        e.preventDefault()
        select(Math.max(0, keys[e.key]))
      }}
    >
      {items.map((item, i) => (
        <li
          key={item.revision} id={`change-${item.revision}`} role="option" aria-selected={i === index}
          class={item.verb} data-revision={item.revision} onClick={() => select(i)}
        >
          <span class="when"><Clock time={item.time} /> <span class="quiet"><Ago time={item.time} /></span></span>
          <span class="what"><Verb change={item} /> <Who change={item} /></span>
          <Changed change={item} most={3} />
          {item.earlier && item.uid !== items[0].uid && <span class="badge warn">an earlier object</span>}
        </li>
      ))}
    </ol>
  )
}
