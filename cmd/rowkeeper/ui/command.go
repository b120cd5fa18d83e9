package ui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/rowkeeper/rowkeeper/pkg/server"
)

// Command returns the command "ui".
func Command() *cobra.Command {
	c := &command{loading: clientcmd.NewDefaultClientConfigLoadingRules()}
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Show the history of objects and the state of a server in the browser",
		Long: "Ui serves a page for the browser of this machine: the timeline of an object with who " +
			"changed it and when, its state at each revision, what differs, an undo, what changed in " +
			"a namespace, and pictures of the server's metrics. It prints a URL that can be opened " +
			"once, and forwards what the page asks to the server that the kubeconfig names, as " +
			"\"kubectl proxy\" does. The browser gets no credentials. The history is there if the " +
			"server has it.",
		Example: "  rowkeeper ui\n" +
			"  rowkeeper ui --kubeconfig .rowkeeper/kubeconfig --open\n" +
			"  rowkeeper ui --context staging --port 8081",
		Args: server.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.loading.ExplicitPath, "kubeconfig", "", "The kubeconfig that names the server. "+
		"By default, as for kubectl: the files that KUBECONFIG names, or ~/.kube/config.")
	f.StringVar(&c.overrides.CurrentContext, "context", "", "The context of the kubeconfig, if not "+
		"the current one.")
	f.StringVar(&c.address, "address", "127.0.0.1", "Address of the loopback that the page is "+
		"served at.")
	f.IntVar(&c.port, "port", 0, "Port that the page is served at. By default, one that is free.")
	f.BoolVar(&c.open, "open", false, "Open the page in the browser.")
	return cmd
}

// command is what the command "ui" is told on the command line.
type command struct {
	loading   *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
	address   string
	port      int
	open      bool
}

func (c *command) run(ctx context.Context, stdout, stderr io.Writer) error {
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(c.loading, &c.overrides)
	kubeconfig, err := loader.RawConfig()
	if err != nil {
		return err
	}
	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return server.UsageError{Err: errors.New("no kubeconfig names a server: give --kubeconfig")}
	} else if err != nil {
		return err
	}
	about := About{Context: kubeconfig.CurrentContext}
	if c.overrides.CurrentContext != "" {
		about.Context = c.overrides.CurrentContext
	}
	if named := kubeconfig.Contexts[about.Context]; named != nil {
		about.User = named.AuthInfo
	}
	listener, err := Listen(ctx, c.address, c.port)
	if err != nil {
		return err
	}
	defer listener.Close()
	page, err := New(config, about, listener.Addr())
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "Open %s in a browser of this machine.\nThe URL works once. Ctrl-C ends the page.\n",
		page.URL())
	if c.open {
		if err := openBrowser(ctx, page.URL()); err != nil {
			fmt.Fprintf(stderr, "No browser can be started: %v\n", err)
		}
	}
	return page.Serve(ctx, listener)
}

// openBrowser starts the program that opens URLs on this system.
func openBrowser(ctx context.Context, url string) error {
	program := []string{"xdg-open", url}
	switch runtime.GOOS {
	case "darwin":
		program[0] = "open"
	case "windows":
		program = []string{"rundll32", "url.dll,FileProtocolHandler", url}
	}
	cmd := exec.CommandContext(ctx, program[0], program[1:]...)
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // the page is served, whatever comes of it
	return nil
}
