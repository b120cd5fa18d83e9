// The site of the documentation: make docs. The pages are the README, docs/, deploy/*.md and the
// reports of the tests, as they are. Their links are those of a code host, to files; here they lead
// to pages, or to the code host.
import { existsSync, readFileSync, statSync } from 'node:fs'
import { dirname, join, posix, relative, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = resolve(dirname(fileURLToPath(import.meta.url)), '../../..')
const host = 'https://github.com/rowkeeper/rowkeeper'

const pages = {
  'README.md': 'index.md',
  'docs/README.md': 'docs.md',
  'deploy/README.md': 'operate/deploy.md',
  'hack/bench/REQUESTS.md': 'evidence/requests.md',
  'hack/bench/RESULTS.md': 'evidence/bench.md',
  'hack/bench/FINDINGS.md': 'evidence/findings.md',
  'hack/torture/RESULTS.md': 'evidence/torture.md',
  'hack/torture/ALERTS.md': 'evidence/alerts.md',
  'hack/torture/robustness/RESULTS.md': 'evidence/robustness.md',
  'hack/mutants/RESULTS.md': 'evidence/mutants.md',
  'storage/internal/test/simulate/RESULTS.md': 'evidence/simulation.md',
}

// page returns the page that a file of the repository is, or nothing.
function page(file) {
  if (pages[file]) return pages[file]
  if (/^docs\/.*\.md$/.test(file)) return file.slice('docs/'.length).replace(/README\.md$/, 'index.md')
}

// target returns where a link of a file leads on the site. A link to nothing ends the build.
function target(file, link) {
  if (/^([a-z]+:|#)/.test(link)) return link
  const [path, anchor] = link.split('#')
  const to = posix.join(posix.dirname(file), path)
  if (!existsSync(join(root, to))) throw new Error(`${file} links to ${link}, which is not there`)
  const hash = anchor ? `#${anchor}` : ''
  const there = page(to)
  if (there) return `/${there.replace(/(^|\/)index\.md$/, '$1').replace(/\.md$/, '.html')}${hash}`
  return `${host}/${statSync(join(root, to)).isDirectory() ? 'tree' : 'blob'}/main/${to}${hash}`
}

// sidebar has the lists of docs/README.md, which is the one map of the pages: what leads to a page.
// Links into the middle of a page, and to code, are on the map alone.
function sidebar() {
  const map = 'docs/README.md'
  const [, ...chapters] = readFileSync(join(root, map), 'utf8').split(/^## /m)
  return chapters.map((chapter) => ({
    text: chapter.split('\n')[0],
    collapsed: true,
    items: [...chapter.matchAll(/^- \[(.+?)\]\((.+?)\)/gms)]
      .map(([, text, link]) => ({ text: text.replaceAll('`', '').replaceAll('\n', ' '), link: target(map, link) }))
      .filter(({ link }) => link.startsWith('/') && !link.includes('#')),
  }))
}

// links rewrites the links of a page, before VitePress looks at them.
function links(md) {
  md.core.ruler.push('links', ({ tokens, env }) => {
    const file = relative(root, env.realPath ?? env.path)
    for (const token of tokens.flatMap((t) => t.children ?? [])) {
      if (token.type === 'link_open') token.attrSet('href', target(file, token.attrGet('href')))
    }
  })
}

// labels gives each cell of a table the head of its column, which narrow screens show beside it.
function labels(md) {
  md.core.ruler.push('labels', ({ tokens }) => {
    let heads = [], column = 0
    tokens.forEach((token, i) => {
      if (token.type === 'thead_open') heads = []
      if (token.type === 'tr_open') column = 0
      if (token.type === 'th_open') heads.push(tokens[i + 1].content.replace(/[*`]|\[(.+?)\]\(.+?\)/g, '$1'))
      if (token.type === 'td_open') token.attrSet('data-label', heads[column++] ?? '')
    })
  })
}

// tasks gives checklists their boxes.
function tasks(md) {
  md.core.ruler.push('tasks', ({ tokens }) => {
    tokens.forEach((token, i) => {
      if (token.type !== 'inline' || !token.content.startsWith('[ ] ')) return
      token.children[0].content = token.children[0].content.replace('[ ] ', '☐ ')
      tokens[i - 2].attrJoin('class', 'task')
    })
  })
}

// sessions shows commands and what they print apart, and lets the button copy the commands alone. A
// line that begins with "$ " is a command. Those after it that begin with "> ", or follow a
// backslash, continue it.
function sessions(md) {
  const fence = md.renderer.rules.fence
  md.renderer.rules.fence = (tokens, i, ...rest) => {
    if (tokens[i].info.trim() !== 'console') return fence(tokens, i, ...rest)
    const ignored = (kind, text) => `<span class="${kind} vp-copy-ignore">${md.utils.escapeHtml(text)}</span>`
    let command = '', copied = false // the line before, if it was one
    const lines = tokens[i].content.trimEnd().split('\n').map((line, n) => {
      const [, prompt, text] = /^(\$ |> )?(.*)$/.exec(line)
      const goesOn = command !== '' && (prompt === '> ' || command.endsWith('\\'))
      if (prompt !== '$ ' && !goesOn) {
        command = ''
        return ignored('output', (n ? '\n' : '') + line)
      }
      const shown = prompt ? text : line
      const end = n ? (copied ? '\n' : ignored('output', '\n')) : ''
      copied = true
      command = line
      return `${end}${prompt ? ignored('prompt', prompt) : ''}<span class="command">${md.utils.escapeHtml(shown)}</span>`
    })
    return `<div class="language-console vp-adaptive-theme">${copied ? '<button title="Copy the commands" class="copy"></button>' : ''}` +
      `<span class="lang">console</span><pre class="vp-code" v-pre><code>${lines.join('')}</code></pre></div>\n`
  }
}

// front makes the front page of the README: its title and first sentence are shown large.
const readme = readFileSync(join(root, 'README.md'), 'utf8')
const tagline = readme.split('\n\n')[1].replace(/[*`]/g, '').replaceAll('\n', ' ')
function front(md) {
  md.core.ruler.push('front', ({ tokens, env }) => {
    if (relative(root, env.realPath ?? env.path) === 'README.md') tokens.splice(0, 6)
  })
}

// Pages become modules that import vue. They are outside of this folder, where vue is installed.
const pagesElsewhere = {
  name: 'pages-elsewhere',
  enforce: 'pre',
  resolveId(id) {
    if (/^vue(\/|$)/.test(id)) return this.resolve(id, join(root, 'hack/site/package.json'), { skipSelf: true })
  },
}

// Anchors are those of the code host.
const slugify = (heading) =>
  heading.trim().toLowerCase().replace(/[^\p{L}\p{N}\p{M}_ -]/gu, '').replaceAll(' ', '-')

// icon is rows, of which the first is the newest.
const icon = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect x="3" y="4" width="26" height="6" rx="2" fill="#3b6fb6"/>' +
  '<path d="M3 15a2 2 0 0 1 2-2h22a2 2 0 0 1 2 2v2a2 2 0 0 1-2 2H5a2 2 0 0 1-2-2zM3 24a2 2 0 0 1 2-2h22a2 2 0 0 1 2 2v2a2 2 0 0 1-2 2H5a2 2 0 0 1-2-2z" fill="#8fb3e3"/></svg>'

export default {
  title: 'Rowkeeper',
  description: 'Kubernetes-style API servers on SQLite, PostgreSQL, MySQL and MariaDB',
  lang: 'en',
  head: [['link', { rel: 'icon', href: `data:image/svg+xml,${encodeURIComponent(icon)}` }]],
  srcDir: '../..',
  srcExclude: ['{bin,cmd,migrations,pkg}/**', 'deploy/*/**', '{hack,storage}/**/!(RESULTS|FINDINGS|REQUESTS|ALERTS).md', '**/node_modules/**'],
  outDir: '../../bin/site',
  cacheDir: '../../bin/site-cache',
  rewrites: page,
  vite: { plugins: [pagesElsewhere] },
  markdown: {
    anchor: { slugify },
    config(md) {
      for (const change of [links, labels, tasks, sessions, front]) change(md)
    },
  },
  transformPageData(page) {
    if (page.filePath !== 'README.md') return
    page.frontmatter.layout = 'home'
    page.frontmatter.hero = {
      name: 'Rowkeeper',
      tagline,
      actions: [
        { text: 'A first session', link: '#a-first-session' },
        { text: 'Documentation', link: '/docs.html', theme: 'alt' },
        { text: 'Why believe it', link: '#why-believe-it', theme: 'alt' },
      ],
    }
  },
  themeConfig: {
    logo: { src: `data:image/svg+xml,${encodeURIComponent(icon)}`, alt: '' },
    nav: [
      { text: 'Documentation', link: '/docs' },
      { text: 'Coming from', link: '/coming-from' },
      { text: 'Figures', link: '/performance' },
      { text: 'Changelog', link: '/CHANGELOG' },
    ],
    search: { provider: 'local' },
    sidebar: sidebar(),
    outline: [2, 3],
    externalLinkIcon: true,
    socialLinks: [{ icon: 'github', link: host }],
  },
}
