// Cluster runs a Kubernetes control plane on one SQLite file, until it is interrupted: upstream's
// kube-apiserver, kube-controller-manager and kube-scheduler, and "rowkeeper etcd". It is started
// by make cluster. When it is started again it goes on where it ended.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"k8s.io/client-go/discovery"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The second signal ends the program, and with it the programs that it has started.
	context.AfterFunc(ctx, stop)
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "cluster:", err)
		}
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("cluster", flag.ContinueOnError)
	bin := flags.String("bin", "bin/cluster", "directory of what hack/e2e/build.sh builds")
	dir := flags.String("dir", ".rowkeeper/cluster", "directory of all files; what is there is "+
		"used again")
	port := flags.Int("port", 6443, "port of kube-apiserver on "+cluster.Host)
	database := flags.String("database", "", "URL of the database; by default a SQLite file, "+
		"state.db in the directory")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	config := cluster.Config{Port: *port, Database: *database}
	if config.Bin, err = filepath.Abs(*bin); err != nil {
		return err
	}
	if config.Dir, err = filepath.Abs(*dir); err != nil {
		return err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(cluster.Host, strconv.Itoa(*port)))
	if err != nil {
		return fmt.Errorf("port %d cannot be had, choose another one by -port: %w", *port, err)
	}
	l.Close()
	// It has keys and, in the database, secrets.
	if err := os.MkdirAll(config.Dir, 0o700); err != nil {
		return err
	}
	c, err := cluster.Start(ctx, config)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil // it was interrupted, and has ended what it had started
	case err != nil:
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	client, err := discovery.NewDiscoveryClientForConfig(c.Admin)
	if err != nil {
		return err
	}
	version, err := client.ServerVersion()
	if err != nil {
		return err
	}
	at := *database
	if at == "" {
		at = filepath.Join(config.Dir, "state.db")
	}
	fmt.Fprintf(out, "Kubernetes %s serves %s\n"+
		"Its objects are in %s\n"+
		"Its logs are in %s\n"+
		"There is no node, so pods stay pending.\n"+
		"Try: export KUBECONFIG=%s\n"+
		"     %s get all -A\n"+
		"Ctrl-C stops it. The next start goes on with the same objects.\n",
		version.GitVersion, c.URL(), at, c.Logs(), c.Kubeconfig, filepath.Join(config.Bin, "kubectl"))
	if err := c.Wait(ctx); err != nil {
		return err
	}
	fmt.Fprintln(out, "Stopping.")
	return nil
}
