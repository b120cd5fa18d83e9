import { useEffect, useReducer, useState } from 'preact/hooks'
import { Failure, page, path, watch, type Kind, type Meta } from './api'

// Entry is an object in a list.
export interface Entry {
  key: string
  namespace: string
  name: string
  revision: string
  changes: number // events since the list was read
}

export const pageSize = 500
const largest = 5000 // objects of a page, where many are wanted

function entry(meta: Meta, changes: number): Entry {
  const namespace = meta.namespace ?? ''
  return { key: `${namespace}/${meta.name}`, namespace, name: meta.name, revision: meta.resourceVersion ?? '', changes }
}

// place is where a key is in sorted entries, or would be.
export function place(entries: Entry[], key: string): number {
  let low = 0
  let high = entries.length
  while (low < high) {
    const middle = (low + high) >> 1
    if (entries[middle].key < key) low = middle + 1
    else high = middle
  }
  return low
}

// Collection is the objects of a kind in a namespace, or everywhere. It loads as many pages as
// somebody wants to see, and follows changes by one watch.
//
// All pages show the state at the first one's revision, and the watch begins there. So an event
// about a key that no page has shown yet is newer than that page will be: it is kept in pending.
export class Collection {
  entries: Entry[] = [] // sorted by key
  total = 0 // what the server says that there is
  complete = false
  failure: Failure | null = null
  state: 'connecting' | 'live' | 'offline' = 'connecting'
  changes = 0 // of all entries

  private wanted = 1
  private token = ''
  private loading = false
  private pending = new Map<string, Entry | null>()
  private stop = new AbortController()
  private at: string

  constructor(readonly kind: Kind, readonly namespace: string, private changed: () => void) {
    this.at = path(kind, namespace)
    void this.run()
  }

  close() {
    this.stop.abort()
  }

  // want asks for the entries up to a number.
  want(n: number) {
    this.wanted = Math.max(this.wanted, n)
    void this.load()
  }

  private async run() {
    const signal = this.stop.signal
    for (let failures = 0; !signal.aborted; ) {
      try {
        let revision = await this.first()
        failures = 0
        for (let ended = false; !ended; ) {
          this.tell('live')
          for await (const event of watch(this.at, revision, signal)) {
            if (event.type === 'ERROR') {
              ended = true // its revision is no longer there
              break
            }
            revision = event.object.metadata.resourceVersion ?? revision
            if (event.type !== 'BOOKMARK') this.apply(event.object.metadata, event.type === 'DELETED')
          }
        }
      } catch (e) {
        if (signal.aborted) return
        this.failure = e instanceof Failure ? e : null
        if (this.failure?.code === 410) continue
        this.tell('offline')
        if (this.failure && [401, 403, 404, 405].includes(this.failure.code)) return
        await new Promise((done) => setTimeout(done, Math.min(8000, 500 * 2 ** failures++)))
      }
    }
  }

  private async first(): Promise<string> {
    const answer = await page(this.at, '', pageSize, this.stop.signal)
    this.entries = answer.items.map((item) => entry(item.metadata, 0))
    this.pending.clear()
    this.failure = null
    this.changes++
    this.after(answer.metadata)
    void this.load()
    return answer.metadata.resourceVersion
  }

  private after(meta: { continue?: string; remainingItemCount?: number }) {
    this.token = meta.continue ?? ''
    this.complete = !this.token
    this.total = this.entries.length +
      (this.complete ? 0 : Math.max(meta.remainingItemCount ?? 0, 1))
    this.changed()
  }

  private async load() {
    if (this.loading) return
    this.loading = true
    try {
      while (!this.complete && this.token && this.entries.length < this.wanted) {
        const token = this.token
        let answer
        try {
          const limit = Math.min(Math.max(this.wanted - this.entries.length, pageSize), largest)
          answer = await page(this.at, token, limit, this.stop.signal)
        } catch (e) {
          if (e instanceof Failure && e.code === 410) this.restart()
          return // else the next wish tries again
        }
        if (this.token !== token) continue // the list has begun anew meanwhile
        const fresh = answer.items.map((item) => entry(item.metadata, 0))
          .filter((e) => !this.pending.has(e.key))
        this.token = answer.metadata.continue ?? ''
        const last = fresh.at(-1)?.key ?? ''
        for (const [key, newer] of this.pending) {
          if (this.token && key > last) continue
          if (newer) fresh.push(newer)
          this.pending.delete(key)
        }
        fresh.sort((a, b) => (a.key < b.key ? -1 : 1))
        this.entries = this.entries.concat(fresh)
        this.after(answer.metadata)
      }
    } finally {
      this.loading = false
    }
  }

  // restart begins anew, since the pages' revision is no longer there.
  private restart() {
    this.stop.abort()
    this.stop = new AbortController()
    this.token = ''
    void this.run()
  }

  private apply(meta: Meta, deleted: boolean) {
    const { key } = entry(meta, 0)
    const i = place(this.entries, key)
    const old = this.entries[i]?.key === key ? this.entries[i] : undefined
    const newer = deleted ? null : entry(meta, (old?.changes ?? 0) + 1)
    this.changes++
    if (!this.complete && i === this.entries.length) {
      this.pending.set(key, newer)
    } else {
      if (newer) this.entries.splice(i, old ? 1 : 0, newer)
      else if (old) this.entries.splice(i, 1)
      this.total += (newer ? 1 : 0) - (old ? 1 : 0)
    }
    this.changed()
  }

  private tell(state: Collection['state']) {
    this.state = state
    this.changed()
  }
}

// useCollection follows a collection. Many events are one rendering.
export function useCollection(kind: Kind | undefined, namespace: string): Collection | null {
  const [, render] = useReducer((n: number) => n + 1, 0)
  const [collection, set] = useState<Collection | null>(null)
  useEffect(() => {
    if (!kind) return
    let frame = 0
    const c = new Collection(kind, namespace, () => {
      frame ||= requestAnimationFrame(() => {
        frame = 0
        render(0)
      })
    })
    set(c)
    return () => {
      cancelAnimationFrame(frame)
      c.close()
    }
  }, [kind, namespace])
  return collection?.kind === kind && collection?.namespace === namespace ? collection : null
}
