// Makes ../dist, or the folder that is given: the same bytes from the same source and lock file.
import { build } from 'esbuild'
import { cp, mkdir, readFile, rm, writeFile } from 'node:fs/promises'

const out = process.argv[2] ?? '../dist'
await rm(out, { recursive: true, force: true })
await mkdir(out, { recursive: true })
const { metafile } = await build({
  entryPoints: ['src/app.tsx', 'src/app.css'],
  outdir: out,
  bundle: true,
  minify: true,
  charset: 'utf8',
  format: 'esm',
  target: 'es2022',
  legalComments: 'none',
  metafile: true,
})
for (const file of ['index.html', 'icon.svg']) {
  await cp(`src/${file}`, `${out}/${file}`)
}

// The licences of what is in app.js.
const packages = new Set()
for (const input of Object.keys(metafile.inputs)) {
  const found = input.match(/^node_modules\/((?:@[^/]+\/)?[^/]+)\//)
  if (found) packages.add(found[1])
}
const texts = []
for (const name of [...packages].sort()) {
  const { version, license } = JSON.parse(await readFile(`node_modules/${name}/package.json`, 'utf8'))
  const text = await readFile(`node_modules/${name}/LICENSE`, 'utf8')
  texts.push(`${name} ${version} (${license})\n\n${text.trim()}\n`)
}
await writeFile(`${out}/LICENSES.txt`, texts.join(`\n${'-'.repeat(78)}\n\n`))
