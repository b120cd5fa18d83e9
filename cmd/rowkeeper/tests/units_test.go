package tests

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// unitsAt copies the units of deploy/systemd, with this program in place of the installed one, and
// with their directories below another one. It returns the command line of each service.
func unitsAt(t *testing.T, root string) (files []string, commands map[string][]string) {
	t.Helper()
	const units = "../../../deploy/systemd"
	entries, err := os.ReadDir(units)
	if err != nil {
		t.Fatal(err)
	}
	commands = map[string][]string{}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(units, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		text := strings.NewReplacer("/usr/local/bin/rowkeeper", rowkeeperProgram, "/etc/rowkeeper",
			filepath.Join(root, "etc"), "/var/lib/rowkeeper", filepath.Join(root, "lib"),
			"/var/backups/rowkeeper", filepath.Join(root, "backups")).Replace(string(content))
		file := filepath.Join(root, e.Name())
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
		_, start, found := strings.Cut(strings.ReplaceAll(text, "\\\n", " "), "\nExecStart=")
		if name, service := strings.CutSuffix(e.Name(), ".service"); service {
			line, _, _ := strings.Cut(start, "\n")
			if commands[name] = strings.Fields(line); !found {
				t.Fatalf("%s has no ExecStart", name)
			}
		}
	}
	return files, commands
}

// notified runs a service as systemd does one of Type=notify: until it says that it is ready. It is
// stopped then, and ends in order. It returns what the service has printed.
func notified(t *testing.T, command []string, use func()) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := exec.Command(command[0], command[1:]...)
	var out output
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.Wait()
		l.Close()
	}()
	told := make([]byte, 100)
	if err := l.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if n, err := l.Read(told); err != nil || strings.TrimSpace(string(told[:n])) != "READY=1" {
		cmd.Process.Kill()
		t.Fatalf("%v says %q (%v) to systemd:\n%s", command, told[:n], err, out.String())
	}
	use()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatalf("%v ends with %v:\n%s", command, err, out.String())
	}
	return out.String()
}

// certificates are those of an authority, and of a server and a client that it has signed.
func certificates(t *testing.T) (ca, server, client *pki.Pair) {
	t.Helper()
	now := time.Now()
	end := now.Add(time.Hour)
	ca, err := pki.NewAuthority("authority", now, end)
	if err != nil {
		t.Fatal(err)
	}
	if server, err = ca.Sign(pki.Server("127.0.0.1"), now, end); err != nil {
		t.Fatal(err)
	}
	if client, err = ca.Sign(pki.Client("team-a"), now, end); err != nil {
		t.Fatal(err)
	}
	return ca, server, client
}

// TestUnits: systemd finds nothing wrong with the units, and what they start does its work. No
// systemd runs them here, so what it forbids the services is not tried.
func TestUnits(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"etc/pki", "lib", "backups"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	files, commands := unitsAt(t, root)
	t.Run("verify", func(t *testing.T) {
		analyze := programPath(t, "systemd-analyze")
		if out, err := exec.Command(analyze, append([]string{"verify"}, files...)...).
			CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%v: %s", err, out)
		}
	})
	if n := len(commands); n != 4 {
		t.Fatalf("there are %d services: %v", n, commands)
	}
	etc := func(name string) string { return filepath.Join(root, "etc", name) }
	if err := os.WriteFile(etc("url"), []byte("sqlite://"+filepath.Join(root, "lib", "state.db")+"\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	do := func(want string, command []string) {
		t.Helper()
		if r := run(t, root, "", nil, command[0], command[1:]...); r.code != 0 ||
			!strings.Contains(r.stdout, want) {
			t.Errorf("%v: %d %s%s", command, r.code, r.stdout, r.stderr)
		}
	}
	notified(t, append(commands["rowkeeper"], "--secure-port=0"), func() {
		do("backed up ", commands["rowkeeper-backup"])
		do("compared with the database: ", commands["rowkeeper-drill"])
	})

	ca, server, _ := certificates(t)
	if err := errors.Join(ca.Write(etc("pki/ca.crt"), etc("ca.key")),
		server.Write(etc("pki/server.crt"), etc("pki/server.key"))); err != nil {
		t.Fatal(err)
	}
	anyPort := strings.NewReplacer(":2379", ":0", ":2381", ":0")
	for i, argument := range commands["rowkeeper-etcd"] {
		commands["rowkeeper-etcd"][i] = anyPort.Replace(argument)
	}
	has(t, notified(t, commands["rowkeeper-etcd"], func() {}), "serves etcd's API on https://127.0.0.1:",
		"\nTry: curl http://127.0.0.1:0/readyz\n", "\nstopped\n")
}

// TestEtcdDeployment: the arguments of the pods that serve etcd's API work, and the probes are
// answered without a client's certificate, by which clients alone get in.
func TestEtcdDeployment(t *testing.T) {
	root := t.TempDir()
	content, err := os.ReadFile("../../../deploy/base/etcd/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var deployment appsv1.Deployment
	if err := yaml.UnmarshalStrict(content, &deployment); err != nil {
		t.Fatal(err)
	}
	pod := deployment.Spec.Template.Spec.Containers[0]
	ports := map[string]string{}
	command := []string{rowkeeperProgram}
	for _, p := range pod.Ports {
		port, err := programs.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		ports[p.Name] = fmt.Sprint("127.0.0.1:", port)
	}
	for _, argument := range pod.Args {
		argument = strings.ReplaceAll(argument, "/etc/rowkeeper", root)
		for _, p := range pod.Ports {
			argument = strings.ReplaceAll(argument, fmt.Sprintf("0.0.0.0:%d", p.ContainerPort), ports[p.Name])
		}
		command = append(command, argument)
	}
	serving, database := filepath.Join(root, "serving"), filepath.Join(root, "database")
	ca, server, client := certificates(t)
	if err := errors.Join(os.Mkdir(serving, 0o700), os.Mkdir(database, 0o700),
		os.WriteFile(filepath.Join(database, "url"), []byte("sqlite:"+filepath.Join(root, "state.db")), 0o600),
		ca.Write(filepath.Join(serving, "ca.crt"), filepath.Join(root, "ca.key")),
		server.Write(filepath.Join(serving, "tls.crt"), filepath.Join(serving, "tls.key"))); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.Cert)
	get := func(url string, certificates ...tls.Certificate) (int, error) {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots,
			Certificates: certificates}}
		defer transport.CloseIdleConnections()
		response, err := (&http.Client{Transport: transport}).Get(url)
		if err != nil {
			return 0, err
		}
		return response.StatusCode, response.Body.Close()
	}
	notified(t, command, func() {
		for name, probe := range map[string]*corev1.Probe{"startup": pod.StartupProbe,
			"liveness": pod.LivenessProbe, "readiness": pod.ReadinessProbe} {
			if code, err := get("https://" + ports[probe.HTTPGet.Port.StrVal] + probe.HTTPGet.Path); err != nil ||
				code != http.StatusOK || probe.HTTPGet.Scheme != corev1.URISchemeHTTPS {
				t.Errorf("the probe of %s: %d, %v", name, code, err)
			}
		}
		if code, err := get("https://" + ports["client"] + "/version"); err == nil {
			t.Errorf("a client without a certificate: %d", code)
		}
		if code, err := get("https://"+ports["client"]+"/version", tls.Certificate{
			Certificate: [][]byte{client.Cert.Raw}, PrivateKey: client.Key}); err != nil || code != http.StatusOK {
			t.Errorf("a client with a certificate: %d, %v", code, err)
		}
	})
}
