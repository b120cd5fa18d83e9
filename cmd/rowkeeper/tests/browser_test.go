package tests

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
)

// browser is one Chromium for all tests. It is started when it is needed first, and ends when the
// tests do.
var browser = sync.OnceValues(func() (context.Context, error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, err
	}
	allocator, cancel := chromedp.NewExecAllocator(context.Background(),
		append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path),
			chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("disable-quic", true),
			chromedp.Flag("disable-component-update", true))...)
	stopBrowser = cancel
	ctx, _ := chromedp.NewContext(allocator)
	return ctx, chromedp.Do(ctx)
})

var stopBrowser = func() {}

// tab is a tab of the browser, with cookies and a storage of its own.
type tab struct {
	ctx context.Context
	t   testing.TB
}

var uiURL = regexp.MustCompile(`http://127\.0\.0\.1:\d+/#token=\w+`)

// openUI runs "rowkeeper ui" and opens what it prints. The test is skipped without Chromium, or
// fails if that is required.
func openUI(t *testing.T, kubeconfig string, args ...string) *tab {
	t.Helper()
	programPath(t, "chromium")
	ctx, err := browser()
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr output
	cmd := exec.Command(rowkeeperProgram, append([]string{"ui", "--kubeconfig", kubeconfig}, args...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = filepath.Dir(kubeconfig), &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait() // it is killed
		if t.Failed() {
			t.Logf("rowkeeper ui wrote:\n%s%s", stdout.String(), stderr.String())
		}
	})
	eventually(t, "rowkeeper ui prints its URL", func() bool {
		return uiURL.MatchString(stdout.String())
	})
	ctx, cancel := chromedp.NewContext(ctx, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	b := &tab{ctx, t}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the page shows:\n%s", b.text("document.body.innerText"))
		}
	})
	b.do(chromedp.EmulateViewport(1280, 800), chromedp.Navigate(uiURL.FindString(stdout.String())))
	return b
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

// text evaluates an expression of JavaScript that is a string.
func (b *tab) text(expression string) string {
	b.t.Helper()
	text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](expression))
	if err != nil {
		b.t.Errorf("%s: %v", expression, err)
	}
	return text
}

// until waits until an expression of JavaScript is true. It may fail meanwhile.
func (b *tab) until(expression string) {
	b.t.Helper()
	eventually(b.t, expression, func() bool {
		ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("!!("+expression+")"))
		return err == nil && ok
	})
}

// shows waits until the first element that a selector finds has a text in it.
func (b *tab) shows(selector, text string) {
	b.t.Helper()
	b.until("document.querySelector(" + quoted(selector) + ").innerText.includes(" + quoted(text) + ")")
}

// click waits for an element that can be used, and clicks it.
func (b *tab) click(selector string) {
	b.t.Helper()
	b.do(chromedp.Click(chromedp.CSS(selector), chromedp.NodeEnabled))
}

// press gives keys to an element.
func (b *tab) press(selector, keys string) {
	b.t.Helper()
	b.do(chromedp.Focus(chromedp.CSS(selector)), chromedp.KeyEvent(keys))
}

// goTo opens another place of the page, by its address.
func (b *tab) goTo(place string) {
	b.t.Helper()
	b.do(chromedp.Evaluate[chromedp.Void]("void (location.hash = " + quoted(place) + ")"))
}

func quoted(s string) string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // no string is refused
	}
	return string(text)
}
