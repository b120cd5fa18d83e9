import { render } from 'preact'
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks'
import { about as askAbout, beginSession, Failure, kinds as askKinds, page, path, same, type About, type Kind } from './api'
import { Changes } from './changes'
import { place as placeOf, useCollection } from './collection'
import { List } from './list'
import { Problem } from './problem'
import { Server } from './server'
import { Timeline } from './timeline'

// Place is what the page shows. The URL has it, so that a reload and a link show the same.
interface Place {
  view: 'history' | 'server'
  group: string
  resource: string
  namespace: string // '' is all
  name: string // '' is none: the changes of all
  of: string // namespace of the object
  at: string // revision, '' is the newest
}

const start: Place = { view: 'history', group: '', resource: '', namespace: '', name: '', of: '', at: '' }

function read(): Place {
  const [view, query] = location.hash.replace(/^#\/?/, '').split('?')
  const given = Object.fromEntries(new URLSearchParams(query))
  return { ...start, ...given, view: view === 'server' ? 'server' : 'history' }
}

function link(place: Place): string {
  const query = new URLSearchParams()
  for (const key of ['group', 'resource', 'namespace', 'of', 'name', 'at'] as const) {
    if (place[key]) query.set(key, place[key])
  }
  return `#/${place.view}?${query}`
}

function usePlace(): [Place, (to: Partial<Place>, replace?: boolean) => void] {
  const [place, set] = useState(read)
  // An effect after the painting would miss a change that comes before it.
  useLayoutEffect(() => {
    const moved = () => set(read())
    addEventListener('hashchange', moved)
    return () => removeEventListener('hashchange', moved)
  }, [])
  const go = (to: Partial<Place>, replace = false) => {
    const next = { ...read(), ...to }
    history[replace ? 'replaceState' : 'pushState'](null, '', link(next))
    set(next)
  }
  return [place, go]
}

const core: Kind = { group: '', version: 'v1', resource: 'namespaces', kind: 'Namespace', namespaced: false, writable: true }

// useNamespaces are all namespaces, or null where they cannot be listed.
function useNamespaces(kinds: Kind[] | null): string[] | null {
  const [names, set] = useState<string[] | null>(null)
  useEffect(() => {
    if (!kinds?.some((kind) => same(kind, core))) return
    void (async () => {
      const found: string[] = []
      let token = ''
      do {
        const answer = await page(path(core), token, 500)
        found.push(...answer.items.map((item) => item.metadata.name))
        token = answer.metadata.continue ?? ''
      } while (token)
      set(found)
    })().catch(() => set(null))
  }, [kinds])
  return names
}

function App({ refused }: { refused: Failure | null }) {
  const [place, go] = usePlace()
  const [about, setAbout] = useState<About | null>(null)
  const [kinds, setKinds] = useState<Kind[] | null>(null)
  const [failure, setFailure] = useState<Failure | null>(refused)
  const [filter, setFilter] = useState('')
  const [told, tell] = useState('')
  const filterBox = useRef<HTMLInputElement>(null)

  useEffect(() => {
    if (refused) return
    Promise.all([askAbout(), askKinds()]).then(([about, kinds]) => {
      setAbout(about)
      setKinds(kinds)
    }, (e) => {
      if (!(e instanceof Failure)) throw e
      setFailure(e)
    })
  }, [])
  const names = useNamespaces(kinds)
  const kind = useMemo(() => {
    if (!kinds) return undefined
    const wanted = kinds.find((k) => k.resource === place.resource && k.group === place.group)
    // Kinds of one's own are what people look for first.
    return wanted ?? kinds.find((k) => k.group.includes('.') && !k.group.endsWith('.k8s.io')) ?? kinds[0]
  }, [kinds, place.group, place.resource])
  const collection = useCollection(place.view === 'history' ? kind : undefined,
    kind?.namespaced ? place.namespace : '')
  useEffect(() => setFilter(''), [kind])
  useEffect(() => {
    const focus = (e: KeyboardEvent) => {
      const typing = e.target instanceof HTMLElement && e.target.closest('input, select, textarea, dialog')
      if (e.key !== '/' || typing || e.ctrlKey || e.metaKey || e.altKey) return
      e.preventDefault()
      filterBox.current?.focus()
    }
    addEventListener('keydown', focus)
    return () => removeEventListener('keydown', focus)
  }, [])
  useEffect(() => {
    document.title = place.view === 'server' ? 'Server – Rowkeeper' : `${place.name || kind?.resource || 'History'} – Rowkeeper`
  }, [place, kind])

  const key = `${place.of}/${place.name}`
  const found = collection?.entries[placeOf(collection.entries, key)]
  const live = found?.key === key ? found : undefined
  const state = place.view === 'server' || failure ? '' : collection?.state ?? 'connecting'
  return (
    <>
      <a class="skip" href="#content" onClick={(e) => {
        e.preventDefault()
        document.querySelector<HTMLElement>('main')?.focus()
      }}>Skip to the content</a>
      <nav class="top" aria-label="Views">
        <span class="brand"><img src="/icon.svg" alt="" width="22" height="22" /> Rowkeeper</span>
        <a href={link({ ...place, view: 'history' })} aria-current={place.view === 'history' ? 'page' : undefined}>History</a>
        <a href={link({ ...place, view: 'server' })} aria-current={place.view === 'server' ? 'page' : undefined}>Server</a>
        <span class="space" />
        {about && <span class="about quiet" title={about.server}>{about.user || 'nobody'} at {about.context || about.server}</span>}
        {state && <span class={`live ${state}`} role="status">{{ live: 'live', connecting: 'connecting', offline: 'cut off' }[state]}</span>}
      </nav>
      <p class="unseen" aria-live="polite">{told}</p>
      {failure && <main class="alone" tabIndex={-1}><Problem failure={failure} doing="ask the server" /></main>}
      {!failure && place.view === 'server' && <Server about={about} />}
      {!failure && place.view === 'history' && !kinds && <main class="alone" tabIndex={-1}><p class="quiet">Asking the server what it has…</p></main>}
      {!failure && place.view === 'history' && kinds && !kind && <main class="alone" tabIndex={-1}><p>The server has no kinds.</p></main>}
      {!failure && place.view === 'history' && kinds && kind && (
        <div class="panes">
          <aside aria-label="Objects">
            <label class="field">
              Kind
              <select
                value={`${kind.resource}.${kind.group}`}
                onChange={(e) => {
                  const next = kinds.find((k) => `${k.resource}.${k.group}` === e.currentTarget.value)!
                  go({ group: next.group, resource: next.resource, name: '', of: '', at: '' })
                }}
              >
                {[...new Set(kinds.map((k) => k.group))].sort(own).map((group) => (
                  <optgroup key={group} label={group || 'core'}>
                    {kinds.filter((k) => k.group === group).map((k) => (
                      <option key={k.resource} value={`${k.resource}.${k.group}`}>{k.resource}</option>
                    ))}
                  </optgroup>
                ))}
              </select>
            </label>
            {kind.namespaced && (
              <label class="field">
                Namespace
                {names
                  ? (
                    <select value={place.namespace} onChange={(e) => go({ namespace: e.currentTarget.value, name: '', of: '', at: '' })}>
                      <option value="">all</option>
                      {place.namespace && !names.includes(place.namespace) && <option value={place.namespace}>{place.namespace}</option>}
                      {names.map((name) => <option key={name} value={name}>{name}</option>)}
                    </select>
                  )
                  : (
                    <input
                      value={place.namespace} placeholder="all" spellcheck={false}
                      onChange={(e) => go({ namespace: e.currentTarget.value.trim(), name: '', of: '', at: '' })}
                    />
                  )}
              </label>
            )}
            <label class="field">
              Name
              <input
                ref={filterBox} type="search" value={filter} placeholder="filter ( / )" spellcheck={false}
                onInput={(e) => setFilter(e.currentTarget.value)}
              />
            </label>
            {collection?.failure && collection.entries.length === 0 && (
              <Problem
                failure={collection.failure} doing={`list ${kind.resource}`}
                rights={[{ verb: 'list', group: kind.group, resource: kind.resource, namespace: kind.namespaced && place.namespace || undefined }]}
              />
            )}
            {collection && !(collection.failure && collection.entries.length === 0) && (
              <List
                collection={collection} filter={filter} selected={place.name && key}
                showNamespace={kind.namespaced && !place.namespace} label={`${kind.resource}`}
                onSelect={(e) => go({ group: kind.group, resource: kind.resource, name: e.name, of: e.namespace, at: '' })}
              />
            )}
          </aside>
          <main tabIndex={-1}>
            {place.name
              ? (
                <>
                  <header class="title">
                    <p class="crumbs">
                      <a href={link({ ...place, group: kind.group, resource: kind.resource, name: '', of: '', at: '' })}>
                        {kind.resource}{place.of && ` in ${place.of}`}
                      </a>
                    </p>
                    <h1>{place.name} {collection?.complete && !live && <span class="badge warn">not there now</span>}</h1>
                  </header>
                  <Timeline
                    key={`${kind.group}/${kind.resource}/${key}`} kind={kind} namespace={place.of} name={place.name}
                    version={live ? live.revision : `${collection?.changes ?? 0} changes`} at={place.at}
                    onAt={(at) => go({ at }, true)} tell={tell}
                  />
                </>
              )
              : (
                <Changes
                  key={place.resource ? 'one' : 'all'} every={!place.resource} kind={kind} kinds={kinds} namespace={place.namespace} version={collection?.changes ?? 0}
                  onOpen={(of, change) => {
                    go({ group: of.group, resource: of.resource, name: change.name, of: change.namespace ?? '', at: change.revision })
                    if (!same(of, kind)) setFilter('')
                  }}
                />
              )}
          </main>
        </div>
      )}
    </>
  )
}

// own sorts the groups of one's own before those of Kubernetes.
function own(a: string, b: string): number {
  const of = (group: string) => (group.includes('.') && !group.endsWith('.k8s.io') ? 0 : 1)
  return of(a) - of(b) || (a < b ? -1 : 1)
}

const root = document.getElementById('app')!
beginSession().then(
  () => render(<App refused={null} />, root),
  (e) => render(<App refused={e instanceof Failure ? e : new Failure(0, String(e))} />, root))
