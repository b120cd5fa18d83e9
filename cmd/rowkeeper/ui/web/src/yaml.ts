// yaml writes an object for readers, in the order in which kubectl writes it.
export function yaml(value: unknown): string[] {
  const lines: string[] = []
  block(value, '', lines)
  return lines
}

function block(value: unknown, indent: string, lines: string[]) {
  const pairs: [string, unknown][] = Array.isArray(value)
    ? value.map((v) => ['-', v])
    : Object.entries(value as object).filter(([, v]) => v !== undefined)
        .sort(([a], [b]) => order(a, indent) - order(b, indent) || (a < b ? -1 : 1))
        .map(([k, v]) => [`${scalar(k)}:`, v])
  for (const [head, v] of pairs) {
    if (typeof v === 'string' && v.includes('\n')) {
      // The sign says how the text ends: without a line break, with one, with more.
      const text = v.replace(/\n+$/, '')
      const ends = v.length - text.length
      const first = text.startsWith(' ') || text.startsWith('\n') ? '2' : ''
      lines.push(`${indent}${head} |${first}${ends === 0 ? '-' : ends === 1 ? '' : '+'}`)
      for (const line of text.split('\n')) lines.push(line && `${indent}  ${line}`)
      for (let n = 1; n < ends; n++) lines.push('')
    } else if (v === null || typeof v !== 'object' || JSON.isRawJSON?.(v)) {
      lines.push(`${indent}${head} ${scalar(v)}`)
    } else if (Object.keys(v).length === 0) {
      lines.push(`${indent}${head} ${Array.isArray(v) ? '[]' : '{}'}`)
    } else if (head === '-') {
      const inner: string[] = []
      block(v, `${indent}  `, inner)
      lines.push(`${indent}- ${inner[0].slice(indent.length + 2)}`, ...inner.slice(1))
    } else {
      lines.push(indent + head)
      block(v, Array.isArray(v) ? indent : `${indent}  `, lines)
    }
  }
}

const first = ['apiVersion', 'kind', 'metadata', 'spec', 'data', 'stringData', '*', 'status']

function order(key: string, indent: string): number {
  const at = indent === '' ? first.indexOf(key) : 0
  return at < 0 ? first.indexOf('*') : at
}

// A string has no quotes if it is read as a string without them, and as this one.
const marks = /^$|^\s|\s$|^[,[\]{}#&*!|>'"%@`]|^[-?:](?:\s|$)|:\s|:$|\s#|[\p{Cc}\u2028\u2029\ufeff]/u
const special = /^(?:true|false|yes|no|on|off|null|y|n|~|\.(?:inf|nan)|[-+.\d][\d.e_:+-]*|0[xob].*|\d{4}-\d\d-\d\d.*)$/i

function scalar(value: unknown): string {
  if (typeof value !== 'string') return JSON.stringify(value)
  return marks.test(value) || special.test(value) ? JSON.stringify(value) : value
}
