// The site of the documentation: make docs. The pages are docs/ and deploy/*.md as they are. Their
// links are those of a code host, to files; here they lead to pages, or to the code host.
import { existsSync, readFileSync, statSync } from 'node:fs'
import { dirname, join, posix, relative, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = resolve(dirname(fileURLToPath(import.meta.url)), '../../..')
const host = 'https://github.com/rowkeeper/rowkeeper'

// page returns the page that a file of the repository is, or nothing.
function page(file) {
  if (file === 'deploy/README.md') return 'operate/deploy.md'
  if (file === 'deploy/OPERATIONS.md') return 'operate/operations.md'
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

// sidebar has the lists of docs/README.md, which is the one map of the pages.
function sidebar() {
  const map = 'docs/README.md'
  const [, ...chapters] = readFileSync(join(root, map), 'utf8').split(/^## /m)
  return chapters.map((chapter) => ({
    text: chapter.split('\n')[0],
    items: [...chapter.matchAll(/^- \[(.+?)\]\((.+?)\)/gm)].map(([, text, link]) => ({
      text: text.replaceAll('`', ''),
      link: target(map, link),
    })),
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

export default {
  title: 'Rowkeeper',
  description: 'Kubernetes-style API servers on SQLite, PostgreSQL, MySQL and MariaDB',
  lang: 'en',
  head: [['link', { rel: 'icon', href: 'data:,' }]],
  srcDir: '../..',
  srcExclude: ['*.md', '{bin,cmd,hack,migrations,pkg,storage}/**', 'deploy/*/**', '**/node_modules/**'],
  outDir: '../../bin/site',
  cacheDir: '../../bin/site-cache',
  rewrites: page,
  vite: { plugins: [pagesElsewhere] },
  markdown: { config: links, anchor: { slugify } },
  themeConfig: {
    search: { provider: 'local' },
    sidebar: sidebar(),
    outline: [2, 3],
    externalLinkIcon: true,
    socialLinks: [{ icon: 'github', link: host }],
  },
}
