import { useEffect, useRef, useState } from 'preact/hooks'
import { Failure, get, path, write, type Change, type Kind, type KubeObject, type Right } from './api'
import { Diff, lines } from './diff'
import { Problem } from './problem'
import { ago } from './time'

// restored is what an undo writes: the old labels, annotations and content. Of an object that
// lives, the name, the UID, the status, finalizers, owners and managed fields stay. One that is
// gone is created anew.
export function restored(old: KubeObject, live: KubeObject | null): KubeObject {
  const { apiVersion, kind, metadata, status: _, ...content } = old
  if (!live) {
    const { name, namespace, labels, annotations } = metadata
    return { apiVersion, kind, metadata: { name, namespace, labels, annotations }, ...content }
  }
  const meta = { ...live.metadata }
  delete meta.labels
  delete meta.annotations
  if (metadata.labels) meta.labels = metadata.labels
  if (metadata.annotations) meta.annotations = metadata.annotations
  const next: KubeObject = { apiVersion: live.apiVersion, kind: live.kind, metadata: meta, ...content }
  if (live.status !== undefined) next.status = live.status
  return next
}

interface Plan {
  live: KubeObject | null
  body: KubeObject
  result: KubeObject // what the server would store
  warnings: string[]
}

async function plan(kind: Kind, namespace: string, name: string, old: KubeObject): Promise<Plan> {
  const at = path(kind, namespace, name)
  let live: KubeObject | null
  try {
    live = await get(at)
  } catch (e) {
    if (!(e instanceof Failure) || e.code !== 404) throw e
    live = null
  }
  const body = restored(old, live)
  const { object, warnings } = await send(kind, namespace, name, live, body, true)
  return { live, body, result: object, warnings }
}

function send(kind: Kind, namespace: string, name: string, live: KubeObject | null, body: KubeObject, dryRun: boolean) {
  return live
    ? write('PUT', path(kind, namespace, name), body, dryRun)
    : write('POST', path(kind, namespace), body, dryRun)
}

interface Shown {
  kind: Kind
  namespace: string
  name: string
  change: Change
  onClose(done: boolean): void
}

// Undo is a dialog: what a dry run of the undo would change, and then the write.
export function Undo({ kind, namespace, name, change, onClose }: Shown) {
  const dialog = useRef<HTMLDialogElement>(null)
  const [planned, setPlanned] = useState<Plan | null>(null)
  const [failure, setFailure] = useState<Failure | null>(null)
  const [busy, setBusy] = useState(true)
  const attempt = async (work: () => Promise<void>) => {
    setBusy(true)
    setFailure(null)
    try {
      await work()
    } catch (e) {
      if (!(e instanceof Failure)) throw e
      setFailure(e)
    } finally {
      setBusy(false)
    }
  }
  const look = () => attempt(async () => setPlanned(await plan(kind, namespace, name, change.object!)))
  useEffect(() => {
    dialog.current!.showModal()
    void look()
  }, [])
  const needs: Right[] = [{
    verb: planned && !planned.live ? 'create' : 'update', group: kind.group, resource: kind.resource,
    namespace: namespace || undefined, name: planned && !planned.live ? undefined : name,
  }]
  const before = lines(planned?.live, false)
  const after = lines(planned?.result, false)
  const nothing = !!planned && before.join('\n') === after.join('\n')
  return (
    <dialog ref={dialog} class="undo" aria-labelledby="undo-title" onClose={() => onClose(false)}>
      <h2 id="undo-title">{planned && !planned.live ? 'Create' : 'Undo'} {name}</h2>
      <p>
        To its state at revision {change.revision}, {ago(change.time)}.{' '}
        {planned && !planned.live
          ? 'It was deleted. It is created anew, with a new UID.'
          : 'The labels, the annotations and all content but the status are written back, by an ordinary write.'}
      </p>
      {failure && <Problem failure={failure} doing={`write ${name}`} rights={needs} />}
      {!failure && busy && <p class="quiet" role="status">Trying it without writing…</p>}
      {!failure && planned && (
        <>
          <h3>What the server would change</h3>
          {planned.warnings.map((text) => <p class="note" key={text}>The server warns: {text}</p>)}
          <div class="scroll" tabIndex={0} role="region" aria-label="What would change">
            <Diff before={before} after={after} label={`What an undo to revision ${change.revision} changes`} />
          </div>
        </>
      )}
      <footer>
        <button type="button" onClick={() => dialog.current!.close()}>Cancel</button>
        {failure
          ? <button type="button" class="primary" disabled={busy} onClick={look}>Look again</button>
          : (
            <button
              type="button" class="primary" disabled={busy || !planned || nothing}
              onClick={() => attempt(async () => {
                await send(kind, namespace, name, planned!.live, planned!.body, false)
                onClose(true)
              })}
            >
              Write it
            </button>
          )}
      </footer>
    </dialog>
  )
}
