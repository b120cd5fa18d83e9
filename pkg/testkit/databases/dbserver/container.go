package dbserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/modules/mariadb"
	"github.com/testcontainers/testcontainers-go/modules/mysql"
	"github.com/testcontainers/testcontainers-go/modules/postgres"

	"github.com/rowkeeper/rowkeeper/pkg/testkit/databases/dockerhost"
	"github.com/rowkeeper/rowkeeper/pkg/testkit/databases/programs"
)

// images are the default images of each kind, the preferred first: those that hack/testbed builds,
// which nobody can pull, and the official ones.
var images = map[Kind][]string{
	Postgres: {"localhost/rowkeeper/postgres:17", "postgres:17"},
	MariaDB:  {"localhost/rowkeeper/mariadb:11.8", "mariadb:11.8"},
	MySQL:    {"localhost/rowkeeper/mysql:9.7", "mysql:9.7"},
}

// localImages begin the names of images that no registry has.
const localImages = "localhost/"

// ports are those on which the servers listen in their containers.
var ports = map[Kind]network.Port{
	Postgres: network.MustParsePort("5432/tcp"),
	MariaDB:  network.MustParsePort("3306/tcp"),
	MySQL:    network.MustParsePort("3306/tcp"),
}

// guardLabel is the label by which a guard finds its container.
const guardLabel = "dev.rowkeeper.guard"

// containerHost is a container.
type containerHost struct {
	testcontainers.Container
	docker client.APIClient

	// guard removes the container when leash is closed, that is, when this process ends. Both are
	// nil if testcontainers' reaper does it.
	guard *exec.Cmd
	leash io.Closer
}

// startContainer starts a server in a container.
func startContainer(ctx context.Context, kind Kind, opts Options) (*Server, error) {
	guarded := false
	if _, err := exec.LookPath("docker"); err == nil {
		// The guard needs no image of its own, which testcontainers' reaper does.
		guarded = true
		if err := os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true"); err != nil {
			return nil, err
		}
	}
	log.SetDefault(quiet{})
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return nil, fmt.Errorf("no Docker engine answers: %s",
			strings.Join(strings.Fields(err.Error()), " "))
	}
	docker := provider.Client()
	image, err := findImage(ctx, docker, kind)
	if err != nil {
		return nil, err
	}
	port, err := programs.FreePort()
	if err != nil {
		return nil, err
	}
	h := &containerHost{docker: docker}
	label := strconv.FormatUint(rand.Uint64(), 36)
	if guarded {
		// It looks twice, since a container may be in the making when this process ends.
		h.guard = exec.Command("sh", "-c", `cat >/dev/null
for pause in 3 0; do
	docker ps --all --quiet --filter "label=$1" | xargs --no-run-if-empty docker rm --force --volumes
	sleep $pause
done >/dev/null 2>&1`, "guard", guardLabel+"="+label)
		if h.leash, err = startGuard(h.guard); err != nil {
			return nil, err
		}
	}
	if h.Container, err = runContainer(ctx, kind, image, port, label, opts); err != nil {
		// A container may have been made nevertheless.
		return nil, errors.Join(fmt.Errorf("start a container of %s: %w", image, err),
			h.remove(ctx))
	}
	name, err := dockerhost.Address(ctx, h, ports[kind].String())
	if err != nil {
		return nil, errors.Join(err, h.remove(ctx))
	}
	url := fmt.Sprintf("mysql://root:%s@%s/", adminPassword, name)
	if kind == Postgres {
		url = fmt.Sprintf("postgres://%s:%s@%s/postgres?sslmode=%s", adminUser, adminPassword, name,
			sslmode(opts))
	}
	return &Server{Kind: kind, Source: "image " + image, URL: url, host: h}, nil
}

// findImage returns the image to use, and pulls it if it is not there.
func findImage(ctx context.Context, docker client.APIClient, kind Kind) (string, error) {
	names := images[kind]
	if name := os.Getenv(kind.ImageEnv()); name != "" {
		names = []string{name}
	}
	var reasons []error
	for _, name := range names {
		_, err := docker.ImageInspect(ctx, name)
		if err == nil {
			return name, nil
		}
		reasons = append(reasons, fmt.Errorf("image %s is not there", name))
	}
	for _, name := range names {
		if strings.HasPrefix(name, localImages) {
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

// runContainer starts a container of an image that honours the environment variables of the
// official ones.
func runContainer(ctx context.Context, kind Kind, image string, port int, label string,
	opts Options) (testcontainers.Container, error) {
	// Files come into the container as root's; the entrypoint below hands them to the server before
	// it goes on with the image's own.
	const incoming, files = "/rowkeeper/incoming/", "/rowkeeper/files/"
	var copied []testcontainers.ContainerFile
	write := func(name string, data []byte) (string, error) {
		copied = append(copied, testcontainers.ContainerFile{
			Reader: strings.NewReader(string(data)), ContainerFilePath: incoming + name,
			FileMode: 0o644,
		})
		return files + name, nil
	}
	var cmd []string
	owner, data := "mysql", "/var/lib/mysql"
	if kind == Postgres {
		owner, data = "postgres", "/var/lib/postgresql"
		settings, err := postgresSettings(opts, write)
		if err != nil {
			return nil, err
		}
		cmd = append(cmd, "postgres")
		for _, name := range sortedKeys(settings) {
			cmd = append(cmd, "-c", name+"="+settings[name])
		}
	} else {
		settings, err := mysqlSettings(opts, kind == MySQL, write)
		if err != nil {
			return nil, err
		}
		cmd = append(cmd, map[Kind]string{MariaDB: "mariadbd", MySQL: "mysqld"}[kind])
		for _, name := range sortedKeys(settings) {
			cmd = append(cmd, "--"+name+"="+settings[name])
		}
	}
	customize := testcontainers.CustomizeRequestOption(func(req *testcontainers.GenericContainerRequest) error {
		req.Cmd = cmd
		req.Files = copied
		req.Labels = map[string]string{guardLabel: label}
		// Each image and version logs in its own words that it is ready. Whether it is, is asked of
		// the server.
		req.WaitingFor = nil
		inner := ports[kind]
		if kind == Postgres {
			req.Env["PGDATA"] = data + "/rowkeeper"
		}
		req.ExposedPorts = []string{inner.String()}
		if !opts.Durable {
			req.Tmpfs = map[string]string{data: "rw"}
			if kind == Postgres {
				// The image's own volume would lie upon a directory above it.
				req.Env["PGDATA"] = "/rowkeeper/data/cluster"
				req.Tmpfs = map[string]string{"/rowkeeper/data": "rw"}
			}
		}
		if len(copied) > 0 {
			req.Entrypoint = []string{"sh", "-c",
				fmt.Sprintf(`install -d -o %[1]s %[3]s && install -o %[1]s -m 600 %[2]s* %[3]s && exec docker-entrypoint.sh "$@"`,
					owner, incoming, files), "sh"}
		}
		req.HostConfigModifier = func(c *container.HostConfig) {
			// The same port after a restart.
			c.PortBindings = network.PortMap{inner: {{HostIP: netip.IPv4Unspecified(),
				HostPort: strconv.Itoa(port)}}}
		}
		return nil
	})
	switch kind {
	case Postgres:
		return postgres.Run(ctx, image, postgres.WithUsername(adminUser),
			postgres.WithPassword(adminPassword), postgres.WithDatabase("postgres"), customize)
	case MariaDB:
		return mariadb.Run(ctx, image, mariadb.WithUsername("root"),
			mariadb.WithPassword(adminPassword), customize)
	default:
		return mysql.Run(ctx, image, mysql.WithUsername("root"), mysql.WithPassword(adminPassword),
			customize)
	}
}

func (h *containerHost) start(ctx context.Context) error { return h.Container.Start(ctx) }

func (h *containerHost) stop(ctx context.Context) error {
	timeout := startTimeout
	return h.Container.Stop(ctx, &timeout)
}

func (h *containerHost) kill(ctx context.Context) error {
	_, err := h.docker.ContainerKill(ctx, h.GetContainerID(),
		client.ContainerKillOptions{Signal: "KILL"})
	if err != nil {
		return err
	}
	wait := h.docker.ContainerWait(ctx, h.GetContainerID(),
		client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case <-wait.Result:
		return nil
	case err := <-wait.Error:
		return err
	}
}

func (h *containerHost) pause(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := h.docker.ContainerPause(ctx, h.GetContainerID(), client.ContainerPauseOptions{})
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

func (h *containerHost) resume(ctx context.Context) error {
	_, err := h.docker.ContainerUnpause(ctx, h.GetContainerID(), client.ContainerUnpauseOptions{})
	return err
}

func (h *containerHost) running(ctx context.Context) bool {
	state, err := h.State(ctx)
	return err == nil && state.Running
}

func (h *containerHost) remove(ctx context.Context) error {
	err := testcontainers.TerminateContainer(h.Container, testcontainers.StopContext(ctx),
		testcontainers.StopTimeout(0))
	if h.guard != nil {
		err = errors.Join(err, h.guard.Process.Kill(), h.leash.Close())
		_ = h.guard.Wait() // it was killed
	}
	return err
}

func (h *containerHost) logs(ctx context.Context) string {
	r, err := h.Logs(ctx)
	if err != nil {
		return err.Error()
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return err.Error()
	}
	return programs.Tail(string(data))
}

// startGuard starts a program that outlives this process, but not its end of the returned pipe to
// the program's standard input.
func startGuard(guard *exec.Cmd) (io.Closer, error) {
	// A process group of its own, so that an interrupt on the terminal does not end the guard.
	guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	leash, err := guard.StdinPipe()
	if err == nil {
		err = guard.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start the guard of a server: %w", err)
	}
	return leash, nil
}

// quiet drops what testcontainers logs: each container's every step.
type quiet struct{}

func (quiet) Printf(string, ...any) {}
