package commandline

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Bar shows progress to a person: on a terminal, and nowhere else.
type Bar struct {
	out   io.Writer
	doing string
	shown *progressbar.ProgressBar
	done  int64
}

// NewBar returns a bar for w.
func NewBar(w io.Writer) *Bar {
	if f, ok := w.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		return &Bar{}
	}
	return &Bar{out: w}
}

// Tell is a [storage.Progress].
func (b *Bar) Tell(doing string, done, total int64) {
	if b.out == nil {
		return
	}
	if doing != b.doing || done < b.done {
		b.End()
		b.doing = doing
		b.shown = progressbar.NewOptions64(total, progressbar.OptionSetWriter(b.out),
			progressbar.OptionSetDescription(doing), progressbar.OptionShowCount(),
			progressbar.OptionSetItsString("objects"), progressbar.OptionShowIts(),
			progressbar.OptionSetWidth(30),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
	}
	b.done = done
	// Drawing a thousand of a million is enough, and asking the clock for each would cost more than
	// reading it.
	if done%256 == 0 || done == total {
		_ = b.shown.Set64(done) // what a terminal does not take is not missed
	}
}

// End removes the bar.
func (b *Bar) End() {
	if b.shown != nil {
		_ = b.shown.Clear()
		b.shown = nil
	}
}
