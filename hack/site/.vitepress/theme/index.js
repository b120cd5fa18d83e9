// The theme is VitePress' own, with the changes of style.css.
import theme from 'vitepress/theme'
import './style.css'

export default theme
