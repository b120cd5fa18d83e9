package runner

import (
	"io"
	"os"
	"time"
)

// Screen shows progress: on a terminal in one line that changes, elsewhere in a line every ten
// seconds.
type Screen struct {
	out      io.Writer
	terminal bool
	shown    time.Time
}

// NewScreen writes to a file.
func NewScreen(f *os.File) *Screen {
	info, err := f.Stat()
	return &Screen{out: f, terminal: err == nil && info.Mode()&os.ModeCharDevice != 0}
}

// clear goes to the beginning of a terminal's line and empties it.
const clear = "\r\033[K"

// Progress shows what is going on.
func (s *Screen) Progress(text string) {
	if s.terminal {
		s.write(clear + text)
	} else if time.Since(s.shown) > 10*time.Second {
		s.write(text + "\n")
		s.shown = time.Now()
	}
}

// Line shows something that stays.
func (s *Screen) Line(text string) {
	if s.terminal {
		s.write(clear)
	}
	s.write(text + "\n")
	s.shown = time.Now()
}

// write goes on without a screen when it is gone.
func (s *Screen) write(text string) { _, _ = io.WriteString(s.out, text) }
