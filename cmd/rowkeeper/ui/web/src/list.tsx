import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks'
import { pageSize, type Collection, type Entry } from './collection'

const height = 30 // of a row, as in app.css

interface Shown {
  collection: Collection
  filter: string
  selected: string // its key
  showNamespace: boolean
  label: string
  onSelect(entry: Entry): void
}

// List is a list box of as many objects as there are. Only those rows exist that can be seen.
export function List({ collection, filter, selected, showNamespace, label, onSelect }: Shown) {
  const box = useRef<HTMLDivElement>(null)
  const [top, setTop] = useState(0)
  const [room, setRoom] = useState(600)
  const [active, setActive] = useState(0)
  const text = filter.trim().toLowerCase()
  const entries = useMemo(
    () => (text ? collection.entries.filter((e) => e.name.includes(text)) : collection.entries),
    [collection, collection.entries, collection.changes, text])
  // A filter has to see all names. Without one, the places of the rows that are not loaded are
  // there.
  const count = text ? entries.length : collection.total
  const from = Math.max(0, Math.floor(top / height) - 8)
  const to = Math.min(count, Math.ceil((top + room) / height) + 8)

  useEffect(() => collection.want(text ? Infinity : to + pageSize), [collection, text, to])
  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => setRoom(box.current!.clientHeight))
    observer.observe(box.current!)
    return () => observer.disconnect()
  }, [])
  useEffect(() => {
    setActive(0)
    box.current!.scrollTop = 0
  }, [collection, text])

  const move = (to: number) => {
    const i = Math.max(0, Math.min(count - 1, to))
    setActive(i)
    const el = box.current!
    if (i * height < el.scrollTop) el.scrollTop = i * height
    else if ((i + 1) * height > el.scrollTop + el.clientHeight) el.scrollTop = (i + 1) * height - el.clientHeight
  }
  const keys: Record<string, () => void> = {
    ArrowDown: () => move(active + 1), ArrowUp: () => move(active - 1),
    PageDown: () => move(active + Math.floor(room / height)),
    PageUp: () => move(active - Math.floor(room / height)),
    Home: () => move(0), End: () => move(count - 1),
    Enter: () => entries[active] && onSelect(entries[active]),
    ' ': () => entries[active] && onSelect(entries[active]),
  }
  const rows = []
  for (let i = from; i < to; i++) {
    const e = entries[i]
    rows.push(
      <div
        key={e ? e.key : `place ${i}`} id={`row-${i}`} role="option" aria-selected={!!e && e.key === selected}
        aria-setsize={count} aria-posinset={i + 1} data-key={e?.key}
        class={`row${i === active ? ' active' : ''}`} style={{ top: `${i * height}px` }}
        onClick={() => { setActive(i); if (e) onSelect(e) }}
      >
        {e
          ? <>
              <span class="name" title={e.name}>{showNamespace && <span class="quiet">{e.namespace}/</span>}{e.name}</span>
              {e.changes > 0 && <span class="pulse" key={e.changes} title="changed while you looked" />}
            </>
          : <span class="quiet">loading…</span>}
      </div>,
    )
  }
  return (
    <>
      <div
        class="list" role="listbox" tabIndex={0} ref={box} aria-label={label}
        aria-activedescendant={count > 0 ? `row-${active}` : undefined}
        onScroll={(e) => setTop(e.currentTarget.scrollTop)}
        onKeyDown={(e) => {
          const act = keys[e.key]
          if (!act || e.ctrlKey || e.metaKey || e.altKey) return
          e.preventDefault()
          act()
        }}
      >
        <div class="all" role="presentation" style={{ height: `${count * height}px` }}>{rows}</div>
      </div>
      <p class="count quiet" aria-live="polite">{counted(collection, entries.length, text)}</p>
    </>
  )
}

function counted(c: Collection, found: number, text: string): string {
  const of = c.total.toLocaleString('en')
  if (text && !c.complete) return `${found.toLocaleString('en')} found in ${c.entries.length.toLocaleString('en')} of ${of}`
  if (text) return `${found.toLocaleString('en')} of ${of}`
  return `${of} ${c.total === 1 ? 'object' : 'objects'}`
}
