// Testdbs starts one database server of each kind that it can get. Then it runs a command, such as
// go test with many packages:
//
//	testdbs go test ./...
//
// The command finds the servers by their URLs in the environment (see package dbserver). At the end
// testdbs prints what the tests ran on, and what they could not run on. Its exit code is the
// command's.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest/tally"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: testdbs command [argument…]")
		os.Exit(2)
	}
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "testdbs:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(command []string) (code int, err error) {
	// An interrupt on the terminal reaches the command, too. The servers end after it.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)

	servers, env, err := start(context.Background())
	defer func() {
		for _, s := range servers {
			err = errors.Join(err, s.Close(context.Background()))
		}
	}()
	if err != nil {
		return 1, err
	}

	file, err := os.CreateTemp("", "rowkeeper-report-")
	if err != nil {
		return 1, err
	}
	defer os.Remove(file.Name())
	defer file.Close()

	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(append(os.Environ(), env...), tally.Env+"="+file.Name())
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	go func() {
		for s := range signals {
			if s == syscall.SIGTERM {
				// It may have ended meanwhile.
				_ = cmd.Process.Signal(s)
			}
		}
	}()
	var exit *exec.ExitError
	switch err := cmd.Wait(); {
	case errors.As(err, &exit):
		code = max(exit.ExitCode(), 1) // -1 after a signal
	case err != nil:
		return 1, err
	}

	var sum tally.Tally
	if err := sum.Read(file); err != nil {
		return code, err
	}
	fmt.Println("Databases:")
	return code, sum.Write(os.Stdout)
}

// start starts the servers, all at once, and returns them and what the command needs to know of
// them. It fails if a required one cannot be had.
func start(ctx context.Context) (servers []*dbserver.Server, env []string, err error) {
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		errs   []error
		only   = list("ROWKEEPER_TEST_ONLY")
		needed = list("ROWKEEPER_TEST_REQUIRE")
	)
	for _, kind := range programs.Servers() {
		if len(only) > 0 && !slices.Contains(only, string(kind)) {
			continue
		}
		wg.Go(func() {
			s, err := dbserver.Start(ctx, kind, dbserver.Options{})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				servers = append(servers, s)
				env = append(env, kind.Env()+"="+s.URL, kind.SourceEnv()+"="+s.Source)
			case slices.Contains(needed, string(kind)):
				errs = append(errs, fmt.Errorf("%s is required and cannot be had: %w", kind, err))
			default:
				env = append(env, kind.MissingEnv()+"="+strings.ReplaceAll(err.Error(), "\n", "; "))
			}
		})
	}
	wg.Wait()
	return servers, env, errors.Join(errs...)
}

// list reads a list from the environment.
func list(name string) []string {
	return strings.FieldsFunc(os.Getenv(name), func(r rune) bool { return r == ',' || r == ' ' })
}
