// What the page asks the server, by way of the proxy that has served the page.

export interface Meta {
  name: string
  namespace?: string
  uid?: string
  resourceVersion?: string
  labels?: Record<string, string>
  annotations?: Record<string, string>
  [other: string]: unknown
}

export interface KubeObject {
  apiVersion: string
  kind: string
  metadata: Meta
  [other: string]: unknown
}

// Kind is a resource in the version in which the server prefers to serve it.
export interface Kind {
  group: string
  version: string
  resource: string
  kind: string
  namespaced: boolean
  writable: boolean
}

// Change is an item of the history: a write.
export interface Change {
  revision: string
  time: string
  verb: 'create' | 'update' | 'delete'
  namespace?: string
  name: string
  uid?: string
  earlier?: boolean
  manager?: string
  user?: string
  auditID?: string
  changed?: string[]
  asStored?: boolean
  error?: string // why there is no object, or why it is as stored
  object?: KubeObject
}

export interface History {
  metadata: { resourceVersion?: string; continue?: string; omitted?: boolean }
  oldest?: string
  items: Change[]
}

export interface About {
  context: string
  server: string
  user: string
}

// Right is what a request needs.
export interface Right {
  verb: string
  group: string
  resource: string
  subresource?: string
  namespace?: string
  name?: string
}

interface Status {
  code: number
  reason?: string
  message: string
}

// Failure is an answer that is not what was asked for, in the words of the server.
export class Failure extends Error {
  constructor(readonly code: number, message: string, readonly reason = '') {
    super(message)
  }
}

const storage = 'rowkeeper-key'
const plain = 'application/json'
const partial = 'application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io'
const partialList = 'application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io'
const groups = 'application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList'

// beginSession exchanges the token in the URL for a session, and takes it out of the URL.
export async function beginSession(): Promise<void> {
  if (!location.hash.startsWith('#token=')) return
  const token = location.hash.slice('#token='.length)
  history.replaceState(null, '', '/')
  const answer = await ask('/session', { method: 'POST', body: { token } })
  localStorage.setItem(storage, (await answer.json()).key)
}

interface Asked {
  method?: string
  body?: unknown
  accept?: string
  signal?: AbortSignal
}

async function ask(path: string, asked: Asked = {}): Promise<Response> {
  const headers: Record<string, string> = { Accept: asked.accept ?? plain }
  const key = localStorage.getItem(storage)
  if (key) headers['Rowkeeper-Key'] = key
  if (asked.body !== undefined) headers['Content-Type'] = 'application/json'
  let answer: Response
  try {
    answer = await fetch(path, {
      method: asked.method ?? 'GET',
      headers,
      body: asked.body === undefined ? undefined : JSON.stringify(asked.body),
      signal: asked.signal,
    })
  } catch (e) {
    if (asked.signal?.aborted) throw e
    throw new Failure(0, 'rowkeeper ui does not answer; start it again, and open the URL that it prints')
  }
  if (answer.ok) return answer
  const text = await answer.text()
  let status: Status
  try {
    status = JSON.parse(text)
  } catch {
    status = { code: answer.status, message: text }
  }
  throw new Failure(answer.status, status.message || answer.statusText, status.reason)
}

declare global {
  interface JSON { // older browsers lack both
    rawJSON?(source: string): object
    isRawJSON?(value: unknown): boolean
  }
}

// exact keeps the text of a number that JavaScript would show or write in another way.
function exact(_: string, value: unknown, context?: { source: string }): unknown {
  if (typeof value !== 'number') return value
  if (JSON.rawJSON) return String(value) === context!.source ? value : JSON.rawJSON(context!.source)
  if (Number.isInteger(value) && !Number.isSafeInteger(value)) {
    throw new Failure(-1, 'this browser would round a large number; ' +
      'use a newer browser, or "rowkeeper history" and "rowkeeper undo"')
  }
  return value
}

async function parsed(answer: Response) {
  return JSON.parse(await answer.text(), exact)
}

async function json<T>(path: string, asked: Asked = {}): Promise<T> {
  return parsed(await ask('/server' + path, asked))
}

export async function about(): Promise<About> {
  return (await ask('/about')).json()
}

export async function metrics(signal: AbortSignal): Promise<string> {
  return (await ask('/server/metrics', { accept: 'text/plain', signal })).text()
}

// path is that of a collection or an object.
export function path(kind: Kind, namespace?: string, ...rest: string[]): string {
  const api = kind.group ? ['apis', kind.group, kind.version] : ['api', kind.version]
  const scope = namespace ? ['namespaces', namespace] : []
  return '/' + [...api, ...scope, kind.resource, ...rest].map(encodeURIComponent).join('/')
}

export function same(a?: Kind, b?: Kind): boolean {
  return a?.group === b?.group && a?.resource === b?.resource
}

interface GroupDiscovery {
  metadata: { name?: string }
  versions?: {
    version: string
    resources?: {
      resource: string
      responseKind?: { kind: string }
      scope: string
      verbs: string[]
    }[]
  }[]
}

// kinds are what can be listed and watched, each in the first version that its group has it in.
export async function kinds(): Promise<Kind[]> {
  const found = new Map<string, Kind>()
  // A server without the core group has no /api.
  const answers = await Promise.all(['/api', '/apis'].map((path) =>
    json<{ kind: string; items: GroupDiscovery[] }>(path, { accept: groups }).catch((e) => {
      if (e instanceof Failure && e.code === 404) return { kind: 'APIGroupDiscoveryList', items: [] }
      throw e
    })))
  for (const answer of answers) {
    if (answer.kind !== 'APIGroupDiscoveryList') {
      throw new Failure(0, 'the server is older than Kubernetes 1.30, and does not tell its kinds at once')
    }
    for (const group of answer.items) {
      for (const version of group.versions ?? []) {
        for (const r of version.resources ?? []) {
          const name = group.metadata.name ?? ''
          const key = `${r.resource}.${name}`
          if (found.has(key) || !r.verbs.includes('list') || !r.verbs.includes('watch')) continue
          found.set(key, {
            group: name, version: version.version, resource: r.resource,
            kind: r.responseKind?.kind || r.resource, namespaced: r.scope === 'Namespaced',
            writable: r.verbs.includes('update'),
          })
        }
      }
    }
  }
  return [...found.values()].sort((a, b) =>
    a.resource < b.resource ? -1 : a.resource > b.resource ? 1 : a.group < b.group ? -1 : 1)
}

export interface Page {
  metadata: { resourceVersion: string; continue?: string; remainingItemCount?: number }
  items: { metadata: Meta }[]
}

// page lists metadata only.
export function page(at: string, token: string, limit: number, signal?: AbortSignal): Promise<Page> {
  const query = new URLSearchParams({ limit: String(limit) })
  if (token) query.set('continue', token)
  return json(`${at}?${query}`, { accept: partialList, signal })
}

export interface WatchEvent {
  type: 'ADDED' | 'MODIFIED' | 'DELETED' | 'BOOKMARK' | 'ERROR'
  object: { metadata: Meta; code?: number; message?: string }
}

// watch yields events until the server ends the watch.
export async function* watch(at: string, from: string, signal: AbortSignal): AsyncGenerator<WatchEvent> {
  const query = new URLSearchParams(
    { watch: 'true', allowWatchBookmarks: 'true', resourceVersion: from })
  const answer = await ask(`/server${at}?${query}`, { accept: partial, signal })
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader()
  let rest = ''
  for (;;) {
    const { value, done } = await reader.read()
    if (done) return
    const lines = (rest + value).split('\n')
    rest = lines.pop()!
    for (const line of lines) if (line) yield JSON.parse(line)
  }
}

// readHistory reads a page of the history of an object, or of a collection. A page may have few
// items or none, and a next one all the same: so it is read on until there are as many as were
// asked for.
export async function readHistory(at: string, limit: number, query: Record<string, string>,
  signal?: AbortSignal): Promise<History> {
  const items: Change[] = []
  let token = query.continue ?? ''
  let omitted = false
  for (;;) {
    const asked = new URLSearchParams({ ...query, limit: String(limit - items.length) })
    if (token) asked.set('continue', token)
    const answer = await json<History>(`${at}/history?${asked}`, { signal })
    items.push(...answer.items)
    token = answer.metadata.continue ?? ''
    omitted ||= !!answer.metadata.omitted
    if (!token || items.length >= limit) return { ...answer, items, metadata: { ...answer.metadata, omitted } }
  }
}

export function get(at: string): Promise<KubeObject> {
  return json(at)
}

// write writes an object, or asks what would come of it. It returns what the server warns of, too.
export async function write(method: 'PUT' | 'POST', at: string, body: KubeObject, dryRun: boolean):
  Promise<{ object: KubeObject; warnings: string[] }> {
  const query = new URLSearchParams({ fieldManager: 'rowkeeper-ui', fieldValidation: 'Strict' })
  if (dryRun) query.set('dryRun', 'All')
  const answer = await ask(`/server${at}?${query}`, { method, body })
  const warnings = [...(answer.headers.get('Warning') ?? '').matchAll(/299 \S+ "((?:[^"\\]|\\.)*)"/g)]
  return { object: await parsed(answer), warnings: warnings.map((w) => w[1].replace(/\\(.)/g, '$1')) }
}

// may asks whether the user has a right; null if the server does not tell.
export async function may(right: Right): Promise<boolean | null> {
  try {
    const review = await json<{ status: { allowed: boolean } }>(
      '/apis/authorization.k8s.io/v1/selfsubjectaccessreviews', {
        method: 'POST',
        body: {
          apiVersion: 'authorization.k8s.io/v1', kind: 'SelfSubjectAccessReview',
          spec: { resourceAttributes: right },
        },
      })
    return review.status.allowed
  } catch {
    return null
  }
}
