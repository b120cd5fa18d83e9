// Dbcontainer runs a container for package dbserver, which cannot import the container library: it
// is in the library's own module. The two speak JSON-RPC over the standard input and output. The
// container is removed when the input ends, that is, when the process that asked for it does.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"

	"github.com/rowkeeper/rowkeeper/pkg/testkit/containers/internal/dockerhost"
)

func main() {
	// The process that asks may end before it has its answer.
	signal.Ignore(syscall.SIGPIPE)
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "dbcontainer:", err)
		os.Exit(1)
	}
}

func run() error {
	// This process outlives the one that asks, so there is no need for testcontainers' reaper and
	// its image.
	if err := os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true"); err != nil {
		return err
	}
	log.SetDefault(quiet{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c := &Container{ctx: ctx}
	server := rpc.NewServer()
	if err := server.Register(c); err != nil {
		return err
	}
	// It returns when the input has ended, which ends the calls, too.
	server.ServeCodec(jsonrpc.NewServerCodec(connection{os.Stdout, cancel}))
	return c.remove()
}

// connection is the standard input and output. The end of the input cancels.
type connection struct {
	io.WriteCloser
	cancel context.CancelFunc
}

func (c connection) Read(p []byte) (int, error) {
	n, err := os.Stdin.Read(p)
	if err != nil {
		c.cancel()
	}
	return n, err
}

// wait bounds every call but Run's, which may have to pull an image.
const wait = 2 * time.Minute

// Request is a container that is wanted. Package dbserver has it, too.
type Request struct {
	// Images are those of which the first is taken that is there, or else the first that can be
	// pulled.
	Images          []string
	Entrypoint, Cmd []string
	Env             map[string]string
	// Files are contents by their paths in the container, in which anybody may read them.
	Files map[string][]byte
	// Tmpfs are directories that are kept in memory.
	Tmpfs []string
	// Port is the container's, such as 5432/tcp. It answers at HostPort of this machine.
	Port     string
	HostPort int
}

// Started says which image the container is of, and where its port answers.
type Started struct{ Image, Address string }

// None is what calls without arguments or without results have.
type None struct{}

// Container is the container of this process. Run is called once, and first.
type Container struct {
	ctx       context.Context // of all calls
	container testcontainers.Container
	docker    client.APIClient
}

// Run makes the container and starts it.
func (c *Container) Run(r Request, started *Started) error {
	ctx := c.ctx
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return fmt.Errorf("no Docker engine answers: %s",
			strings.Join(strings.Fields(err.Error()), " "))
	}
	c.docker = provider.Client()
	if started.Image, err = findImage(ctx, c.docker, r.Images); err != nil {
		return err
	}
	port, err := network.ParsePort(r.Port)
	if err != nil {
		return err
	}
	var files []testcontainers.ContainerFile
	for path, data := range r.Files {
		files = append(files, testcontainers.ContainerFile{Reader: bytes.NewReader(data),
			ContainerFilePath: path, FileMode: 0o644})
	}
	tmpfs := map[string]string{}
	for _, dir := range r.Tmpfs {
		tmpfs[dir] = "rw"
	}
	options := []testcontainers.ContainerCustomizer{
		testcontainers.WithCmd(r.Cmd...),
		testcontainers.WithEnv(r.Env),
		testcontainers.WithFiles(files...),
		testcontainers.WithTmpfs(tmpfs),
		testcontainers.WithExposedPorts(r.Port),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) {
			// The same port after a restart.
			h.PortBindings = network.PortMap{port: {{HostIP: netip.IPv4Unspecified(),
				HostPort: strconv.Itoa(r.HostPort)}}}
		}),
	}
	if len(r.Entrypoint) > 0 {
		options = append(options, testcontainers.WithEntrypoint(r.Entrypoint...))
	}
	made, err := testcontainers.Run(ctx, started.Image, options...)
	if made != nil { // also if it could not be started
		c.container = made
	}
	if err != nil {
		return fmt.Errorf("start a container of %s: %w", started.Image, err)
	}
	started.Address, err = dockerhost.Address(ctx, made, r.Port)
	return err
}

// findImage returns the image to use, and pulls it if it is not there.
func findImage(ctx context.Context, docker client.APIClient, names []string) (string, error) {
	var reasons []error
	for _, name := range names {
		_, err := docker.ImageInspect(ctx, name)
		if err == nil {
			return name, nil
		}
		reasons = append(reasons, fmt.Errorf("image %s is not there", name))
	}
	for _, name := range names {
		if strings.HasPrefix(name, "localhost/") { // no registry has it
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
		defer cancel()
		pull, err := docker.ImagePull(ctx, name, client.ImagePullOptions{})
		if err == nil {
			err = pull.Wait(ctx)
		}
		if err == nil {
			return name, nil
		}
		reasons = append(reasons, fmt.Errorf("image %s cannot be pulled: %w", name, err))
	}
	return "", errors.Join(reasons...)
}

// Start starts the container again.
func (c *Container) Start(None, *None) error {
	ctx, cancel := context.WithTimeout(c.ctx, wait)
	defer cancel()
	return c.container.Start(ctx)
}

// Stop ends the container in order.
func (c *Container) Stop(None, *None) error {
	timeout := wait
	return c.container.Stop(c.ctx, &timeout)
}

// Kill ends the container as a power failure would.
func (c *Container) Kill(None, *None) error {
	ctx, cancel := context.WithTimeout(c.ctx, wait)
	defer cancel()
	id := c.container.GetContainerID()
	if _, err := c.docker.ContainerKill(ctx, id,
		client.ContainerKillOptions{Signal: "KILL"}); err != nil {
		return err
	}
	ended := c.docker.ContainerWait(ctx, id,
		client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case <-ended.Result:
		return nil
	case err := <-ended.Error:
		return err
	}
}

// Pause freezes the container.
func (c *Container) Pause(None, *None) error {
	ctx, cancel := context.WithTimeout(c.ctx, wait)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := c.docker.ContainerPause(ctx, c.container.GetContainerID(),
			client.ContainerPauseOptions{})
		// The engine gives up, and lets go what it has frozen, when a busy container's processes do
		// not all freeze at once.
		if err == nil || !strings.Contains(err.Error(), "unable to freeze") {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// Resume ends a Pause.
func (c *Container) Resume(None, *None) error {
	ctx, cancel := context.WithTimeout(c.ctx, wait)
	defer cancel()
	_, err := c.docker.ContainerUnpause(ctx, c.container.GetContainerID(),
		client.ContainerUnpauseOptions{})
	return err
}

// Running tells whether the container's process lives.
func (c *Container) Running(_ None, running *bool) error {
	ctx, cancel := context.WithTimeout(c.ctx, wait)
	defer cancel()
	state, err := c.container.State(ctx)
	if err == nil {
		*running = state.Running
	}
	return err
}

// Logs returns the container's log.
func (c *Container) Logs(_ None, text *string) error {
	ctx, cancel := context.WithTimeout(c.ctx, wait)
	defer cancel()
	logs, err := c.container.Logs(ctx)
	if err != nil {
		return err
	}
	defer logs.Close()
	data, err := io.ReadAll(logs)
	*text = string(data)
	return err
}

func (c *Container) remove() error {
	if c.container == nil {
		return nil
	}
	return testcontainers.TerminateContainer(c.container, testcontainers.StopTimeout(0))
}

// quiet drops what testcontainers logs: each container's every step.
type quiet struct{}

func (quiet) Printf(string, ...any) {}
