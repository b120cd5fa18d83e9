import { diffArrays } from 'diff'
import { useState } from 'preact/hooks'
import type { KubeObject } from './api'
import { yaml } from './yaml'

interface Line {
  sign: '+' | '-' | ' '
  text: string
  before?: number // the line's number in each text
  after?: number
}

// context is how many unchanged lines are shown around a change.
const context = 3

// lines are the lines of an object, or none. What each write changes is left out, unless all is
// wanted.
export function lines(object: KubeObject | null | undefined, all: boolean): string[] {
  if (!object) return []
  const shown: KubeObject = { ...object, metadata: { ...object.metadata } }
  if (!all) {
    delete shown.metadata.managedFields
    delete shown.metadata.resourceVersion
    delete shown.metadata.generation
  }
  return yaml(shown)
}

function compare(before: string[], after: string[]): Line[] {
  const all: Line[] = []
  let b = 1
  let a = 1
  for (const part of diffArrays(before, after)) {
    for (const text of part.value) {
      if (part.removed) all.push({ sign: '-', text, before: b++ })
      else if (part.added) all.push({ sign: '+', text, after: a++ })
      else all.push({ sign: ' ', text, before: b++, after: a++ })
    }
  }
  return all
}

// folds are the spans of unchanged lines that nobody needs to see.
function fold(all: Line[]): (Line | Line[])[] {
  const near = all.map(() => false)
  all.forEach((line, i) => {
    if (line.sign === ' ') return
    for (let k = Math.max(0, i - context); k <= Math.min(all.length - 1, i + context); k++) near[k] = true
  })
  const folded: (Line | Line[])[] = []
  all.forEach((line, i) => {
    const last = folded.at(-1)
    if (near[i]) folded.push(line)
    else if (Array.isArray(last)) last.push(line)
    else folded.push([line])
  })
  return folded.flatMap((f) => (Array.isArray(f) && f.length < 3 ? f : [f]))
}

const words = { '+': 'added', '-': 'removed', ' ': '' }

function Row({ line }: { line: Line }) {
  return (
    <tr class={line.sign === '+' ? 'added' : line.sign === '-' ? 'removed' : ''}>
      <td class="number" aria-hidden="true">{line.before ?? ''}</td>
      <td class="number" aria-hidden="true">{line.after ?? ''}</td>
      <td class="sign">
        <span aria-hidden="true">{line.sign}</span>
        {words[line.sign] && <span class="unseen">{words[line.sign]}: </span>}
      </td>
      <td class="text"><code>{line.text}</code></td>
    </tr>
  )
}

function Fold({ all }: { all: Line[] }) {
  const [open, set] = useState(false)
  if (open) return <>{all.map((line) => <Row line={line} />)}</>
  return (
    <tr class="fold">
      <td colSpan={4}>
        <button type="button" onClick={() => set(true)}>Show {all.length} unchanged lines</button>
      </td>
    </tr>
  )
}

// Diff shows what differs between two texts.
export function Diff({ before, after, label }: { before: string[]; after: string[]; label: string }) {
  const all = compare(before, after)
  const added = all.filter((line) => line.sign === '+').length
  const removed = all.filter((line) => line.sign === '-').length
  if (added + removed === 0) return <p class="quiet">Nothing differs.</p>
  return (
    <figure class="diff" aria-label={label}>
      <figcaption>
        <span class="plus">+{added}</span> <span class="minus">−{removed}</span>
        <span class="unseen"> lines added and removed</span>
      </figcaption>
      <table role="presentation">
        <tbody>
          {fold(all).map((part) => (Array.isArray(part)
            ? <Fold key={`fold ${part[0].before}`} all={part} />
            : <Row key={`${part.sign} ${part.before} ${part.after}`} line={part} />))}
        </tbody>
      </table>
    </figure>
  )
}

// State shows one text, without changes.
export function State({ text, label }: { text: string[]; label: string }) {
  return (
    <figure class="diff" aria-label={label}>
      <table role="presentation">
        <tbody>
          {text.map((line, i) => (
            <tr>
              <td class="number" aria-hidden="true">{i + 1}</td>
              <td class="text"><code>{line}</code></td>
            </tr>
          ))}
        </tbody>
      </table>
    </figure>
  )
}
