import { useEffect, useState } from 'preact/hooks'
import { Failure, may, type Right } from './api'

// rule is what a role has to hold for rights.
function rule(rights: Right[]): string[] {
  return rights.flatMap((r) => [
    `- apiGroups: ["${r.group}"]`,
    `  resources: ["${name(r)}"]`,
    `  verbs: ["${r.verb}"]`,
  ])
}

function name(r: Right): string {
  return r.subresource ? `${r.resource}/${r.subresource}` : r.resource
}

export function said(right: Right): string {
  return `${right.verb} ${name(right)}` + (right.name ? ` "${right.name}"` : '') +
    (right.namespace ? ` in the namespace ${right.namespace}` : ' everywhere')
}

// Missing asks which of the rights that something needs the user does not have.
function Missing({ rights }: { rights: Right[] }) {
  const [answers, set] = useState<(boolean | null)[] | null>(null)
  const key = JSON.stringify(rights)
  useEffect(() => {
    let gone = false
    void Promise.all(rights.map(may)).then((answers) => { if (!gone) set(answers) })
    return () => { gone = true }
  }, [key])
  if (!answers) return <p class="quiet">Asking which right is missing…</p>
  const missing = rights.filter((_, i) => answers[i] === false)
  return (
    <>
      <p>This needs:</p>
      <ul class="rights">
        {rights.map((right, i) => (
          <li class={answers[i] === false ? 'no' : answers[i] ? 'yes' : ''}>
            <code>{said(right)}</code>{' '}
            <strong>{answers[i] === false ? 'is missing' : answers[i] ? 'is there' : ''}</strong>
          </li>
        ))}
      </ul>
      {missing.length > 0 && (
        <>
          <p>A role with this rule gives what is missing:</p>
          <pre>{rule(missing).join('\n')}</pre>
        </>
      )}
    </>
  )
}

interface Shown {
  failure: Failure
  doing: string // "show the history of hello"
  rights?: Right[]
  history?: boolean // what has failed is a question about the history
}

// Problem says why something cannot be shown, in the words of the server, and what helps.
export function Problem({ failure, doing, rights = [], history = false }: Shown) {
  const titles: Record<number, string> = {
    401: 'You are not signed in', 403: `You may not ${doing}`, 409: 'Somebody else was faster',
    502: 'The server does not answer', 0: 'The page is cut off',
  }
  const absent = history && failure.code === 404
  return (
    <section class="problem" role="alert" data-code={failure.code}>
      <h3>{absent ? 'This server shows no history' : titles[failure.code] ?? `It cannot ${doing}`}</h3>
      <p class="said">{failure.message}</p>
      {absent && (
        <p>
          The flag <code>--enable-history</code> of <code>rowkeeper serve</code> turns it on. Servers
          of other origin have no history.
        </p>
      )}
      {failure.code === 403 && rights.length > 0 && <Missing rights={rights} />}
    </section>
  )
}
