import { useEffect, useReducer, useRef, useState } from 'preact/hooks'

const units: [number, Intl.RelativeTimeFormatUnit][] =
  [[60, 'second'], [60, 'minute'], [24, 'hour'], [7, 'day'], [1e9, 'week']]
const relative = new Intl.RelativeTimeFormat('en', { numeric: 'always', style: 'short' })
const exact = new Intl.DateTimeFormat(undefined, {
  year: 'numeric', month: '2-digit', day: '2-digit', hour: '2-digit', minute: '2-digit', second: '2-digit',
  fractionalSecondDigits: 3, hour12: false,
})
const clock = new Intl.DateTimeFormat(undefined, {
  hour: '2-digit', minute: '2-digit', second: '2-digit', hour12: false,
})

export function ago(time: string): string {
  let n = Math.max(0, (Date.now() - Date.parse(time)) / 1000)
  if (n < 5) return 'just now'
  for (const [size, unit] of units) {
    if (n < size) return relative.format(-Math.floor(n), unit)
    n /= size
  }
  return ''
}

export function exactly(time: string): string {
  return exact.format(Date.parse(time))
}

// Ago is a time as readers say it, and exactly on demand.
export function Ago({ time }: { time: string }) {
  return <time dateTime={time} title={exactly(time)}>{ago(time)}</time>
}

// Clock is the time of a day, with the date where it is not today's.
export function Clock({ time }: { time: string }) {
  const today = new Date(time).toDateString() === new Date().toDateString()
  return <time dateTime={time} title={exactly(time)}>{today ? clock.format(Date.parse(time)) : exactly(time).slice(0, -4)}</time>
}

// useCalm is a value that changes at most once in some time.
export function useCalm<T>(value: T, milliseconds: number): T {
  const [calm, set] = useState(value)
  const last = useRef(0)
  useEffect(() => {
    if (value === calm) return
    const timer = setTimeout(() => {
      last.current = performance.now()
      set(value)
    }, Math.max(0, last.current + milliseconds - performance.now()))
    return () => clearTimeout(timer)
  }, [value, calm, milliseconds])
  return calm
}

// useTick renders anew from time to time, since relative times grow.
export function useTick(milliseconds: number) {
  const [, render] = useReducer((n: number) => n + 1, 0)
  useEffect(() => {
    const timer = setInterval(render, milliseconds, undefined)
    return () => clearInterval(timer)
  }, [milliseconds])
}
