package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The tests' own program plays the server, as the environment variable says.
const role = "ROWKEEPER_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(role) == "" {
		os.Exit(m.Run())
	}
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	fmt.Fprintln(os.Stderr, strings.Join(os.Args[1:], " "))
	switch os.Getenv(role) {
	case "refuses":
		fmt.Fprintln(os.Stderr, "Error: the flag is wrong")
		os.Exit(2)
	case "hangs":
		<-interrupts
	case "serves":
		fmt.Println("It serves from somewhere\nThe kubeconfig is /there/kubeconfig")
		<-interrupts
		fmt.Println("It has ended")
	case "ends":
		fmt.Println("The kubeconfig is /there/kubeconfig")
	case "fails":
		fmt.Println("The kubeconfig is /there/kubeconfig")
		<-interrupts
		fmt.Fprintln(os.Stderr, "Error: the database is away")
		os.Exit(1)
	}
}

// options are those of a program that plays a role, whose directory is below another one.
func options(t *testing.T, plays string) (o Options, temporary string) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	temporary = t.TempDir()
	t.Setenv(role, plays)
	t.Setenv("TMPDIR", temporary)
	return Options{Program: program}, temporary
}

func empty(t *testing.T, dir string) {
	t.Helper()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

func TestLaunch(t *testing.T) {
	o, temporary := options(t, "serves")
	var log tail
	o.Stderr = &log
	s, err := Launch(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if s.Kubeconfig != "/there/kubeconfig" {
		t.Errorf("the kubeconfig is %q", s.Kubeconfig)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	empty(t, temporary)
	args := strings.Fields(log.String())
	if !slices.Contains(args, "serve") || !slices.Contains(args, "--enable-crds") ||
		!slices.Contains(args, "--secure-port=0") {
		t.Errorf("the arguments are %q", args)
	}
}

func TestDirOfTheCaller(t *testing.T) {
	o, temporary := options(t, "serves")
	o.Dir, o.Args = t.TempDir(), []string{"--database=memory:"}
	kept := filepath.Join(o.Dir, "kept")
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var log tail
	o.Stderr = &log
	s, err := Launch(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
	empty(t, temporary)
	if args := log.String(); !strings.Contains(args, "--data-dir="+o.Dir+" --database=memory:") ||
		strings.Contains(args, "--enable-crds") {
		t.Errorf("the arguments are %q", args)
	}
}

// TestEndedBefore: a test may stop or kill its server before it ends, as often as it likes. Only a
// server that has ended by itself is an error.
func TestEndedBefore(t *testing.T) {
	o, temporary := options(t, "serves")
	for name, end := range map[string]func(*Server) error{"Stop": (*Server).Stop,
		"Kill": (*Server).Kill} {
		t.Run(name, func(t *testing.T) {
			s := Start(t, o) // its cleanup fails the test if the second Stop is an error
			for range 2 {
				if err := end(s); err != nil {
					t.Error(err)
				}
			}
		})
	}
	empty(t, temporary)

	t.Setenv(role, "ends")
	s, err := Launch(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	<-s.ended
	if err := s.Stop(); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("a server that has ended by itself: %v", err)
	}
	if err := s.Stop(); err != nil {
		t.Errorf("the error was returned before: %v", err)
	}
	empty(t, temporary)
}

func TestFailures(t *testing.T) {
	o, temporary := options(t, "refuses")
	if _, err := Launch(t.Context(), o); err == nil ||
		!strings.Contains(err.Error(), "exit status 2") ||
		!strings.Contains(err.Error(), "the flag is wrong") {
		t.Errorf("a program that refuses its flags: %v", err)
	}
	empty(t, temporary)

	t.Setenv(role, "hangs")
	ctx, cancel := context.WithCancelCause(t.Context())
	late := errors.New("it is late")
	o.Stderr = writer(func() { cancel(late) })
	if _, err := Launch(ctx, o); !errors.Is(err, late) || !strings.Contains(err.Error(), "not ready") {
		t.Errorf("a program that is not ready in time: %v", err)
	}
	empty(t, temporary)

	t.Setenv(role, "fails")
	s, err := Launch(t.Context(), Options{Program: o.Program})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err == nil || !strings.Contains(err.Error(), "the database is away") {
		t.Errorf("a program that fails while it stops: %v", err)
	}
	empty(t, temporary)

	t.Setenv("PATH", temporary)
	t.Setenv("ROWKEEPER", "")
	if _, err := Launch(t.Context(), Options{}); err == nil ||
		!strings.Contains(err.Error(), "Options.Program") {
		t.Errorf("no program: %v", err)
	}
}

// writer calls a function when something is written.
type writer func()

func (w writer) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}
