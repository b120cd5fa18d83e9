package controllers

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// project has controllers that need no node.
type project struct {
	in          string // the directory of the module that requires the project's one
	module      string
	definitions string // the files of its CustomResourceDefinitions, in the module
	webhook     string // the Service that the server asks for admission, or empty
	// start starts the controllers. Where their webhook is they tell the front, which is before it.
	start func(u user, webhook *front)
	// scenario is gone through again and again, while the servers are killed. The names of what it
	// creates begin with the round's name.
	scenario func(u user, round string)
	// kinds are those of which nothing is left in the namespace team after it, of any round.
	kinds []string
}

var projects = map[string]project{
	"cert-manager":  certManager,
	"kro":           kro,
	"trust-manager": trustManager,
}

// setups say which servers there are, behind one address.
var setups = map[string]struct {
	postgres bool
	replicas int
}{
	"sqlite":   {replicas: 1},
	"postgres": {postgres: true, replicas: 3},
}

// TestControllers: the controllers of other projects, as they are, do their work on rowkeeper while
// its processes are killed. Nothing is stuck, and nothing is left behind.
func TestControllers(t *testing.T) {
	if os.Getenv("ROWKEEPER_TEST_CONTROLLERS") == "" {
		t.Skip("it compiles for minutes, and runs for 18; ROWKEEPER_TEST_CONTROLLERS=1 runs it")
	}
	long := 3 * time.Minute
	if text := os.Getenv("ROWKEEPER_TEST_CONTROLLERS_FOR"); text != "" {
		var err error
		if long, err = time.ParseDuration(text); err != nil {
			t.Fatalf("ROWKEEPER_TEST_CONTROLLERS_FOR is not a duration: %v", err)
		}
	}
	log := textlogger.NewLogger(textlogger.NewConfig(
		textlogger.Output(logFile(t, "what runs in the test"))))
	klog.SetLogger(log)
	ctrl.SetLogger(log)
	program := filepath.Join(t.TempDir(), "rowkeeper")
	// The program is in the workspace. This module is not.
	run(t, "env", "GOWORK=", "go", "-C", "../../..", "build", "-o", program, "./cmd/rowkeeper")
	for name, p := range projects {
		for setup, with := range setups {
			t.Run(name+"/"+setup, func(t *testing.T) {
				webhook := newFront(t, 1)
				var args []string
				if p.webhook != "" {
					args = append(args, "--webhook-service="+p.webhook+"="+webhook.address())
				}
				if with.postgres {
					args = append(args, "--database="+newDatabase(t))
				}
				s := startServers(t, program, with.replicas, args)
				u := newUser(t, s.kubeconfig)
				u.define(p)
				u.create(`{apiVersion: v1, kind: Namespace, metadata: {name: team}}`)
				p.start(u, webhook)

				ctx, cancel := context.WithCancel(t.Context())
				killed := make(chan int)
				go func() { killed <- s.killAtRandom(ctx) }()
				// The scenario may end the test. The servers are used until nobody kills them.
				defer func() {
					cancel()
					if kills := <-killed; kills == 0 {
						t.Errorf("no server was killed in %s; it has to take longer", long)
					} else {
						t.Logf("%d times a server was killed", kills)
					}
				}()
				rounds := 0
				for end := time.Now().Add(long); time.Now().Before(end); rounds++ {
					p.scenario(u, fmt.Sprintf("round%d", rounds))
					for _, kind := range p.kinds {
						u.none(kind)
					}
				}
				t.Logf("%d times everything was as it has to be", rounds)
			})
		}
	}
}

// run runs a command, which has to succeed, and returns what it prints.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var errors bytes.Buffer
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", cmd, err, out, &errors)
	}
	return strings.TrimSpace(string(out))
}

// runProgram builds a program that the module in the directory programs requires, and runs it until
// the test ends.
func runProgram(t *testing.T, kubeconfig, pkg string, args ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "program")
	run(t, "go", "-C", "programs", "build", "-o", file, pkg)
	cmd := exec.Command(file, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	log := logFile(t, pkg)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		select {
		case err := <-ended:
			t.Errorf("%s has ended by itself: %v", pkg, err)
		default:
			if err := cmd.Process.Kill(); err != nil {
				t.Error(err)
			}
			t.Logf("%s: %v", pkg, <-ended)
		}
	})
}

// logFile is for what somebody has to say, the end of which is shown if the test fails.
func logFile(t *testing.T, who string) *os.File {
	t.Helper()
	log, err := os.CreateTemp(t.TempDir(), "log-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			text, err := os.ReadFile(log.Name())
			t.Logf("the log of %s, which ends here (%v):\n%s", who, err, text[max(0, len(text)-20_000):])
		}
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	return log
}

// user is whom the controllers work for. Everything that the user does is tried again until it
// works, since a server may be killed meanwhile.
type user struct {
	*testing.T
	client.Client
	kubeconfig string
}

func newUser(t *testing.T, kubeconfig string) user {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return user{T: t, Client: c, kubeconfig: kubeconfig}
}

// account returns the kubeconfig of a service account, which signs in by a token.
func (u user) account(namespace, name string) string {
	u.Helper()
	config, err := clientcmd.LoadFromFile(u.kubeconfig)
	if err != nil {
		u.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To(int64(24 * 60 * 60))}}
	u.eventually("the account "+name+" has a token", func(ctx context.Context) error {
		return u.SubResource("token").Create(ctx, account, request)
	})
	for _, current := range config.Contexts {
		config.AuthInfos[current.AuthInfo] = &clientcmdapi.AuthInfo{Token: request.Status.Token}
	}
	file := filepath.Join(u.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		u.Fatal(err)
	}
	return file
}

// eventually tries until something works, for longer than servers and controllers may need.
func (u user) eventually(what string, do func(context.Context) error) {
	u.Helper()
	var last error
	if err := wait.PollUntilContextTimeout(u.Context(), 100*time.Millisecond, 2*time.Minute, true,
		func(ctx context.Context) (bool, error) {
			err := do(ctx)
			if err == nil || ctx.Err() == nil {
				last = err // and not that the time is up
			}
			return err == nil, nil
		}); err != nil {
		u.Fatalf("waited in vain for this: %s; at last: %v", what, last)
	}
}

// object reads a manifest, whose verbs (%s) the arguments fill in.
func (u user) object(manifest string, args ...any) *unstructured.Unstructured {
	u.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(fmt.Appendf(nil, manifest, args...), o); err != nil {
		u.Fatal(err)
	}
	return o
}

func name(o *unstructured.Unstructured) string { return o.GetKind() + " " + o.GetName() }

func (u user) create(manifest string, args ...any) *unstructured.Unstructured {
	u.Helper()
	o := u.object(manifest, args...)
	u.eventually(name(o)+" is created", func(ctx context.Context) error {
		// An earlier try may have created it, and not have heard of that.
		if err := u.Create(ctx, o.DeepCopy()); !apierrors.IsAlreadyExists(err) {
			return err
		}
		return nil
	})
	return o
}

// change sets a field.
func (u user) change(o *unstructured.Unstructured, value string, field ...string) {
	u.Helper()
	u.eventually(name(o)+" is changed", func(ctx context.Context) error {
		if err := u.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		if err := unstructured.SetNestedField(o.Object, value, field...); err != nil {
			return err
		}
		return u.Update(ctx, o)
	})
}

func (u user) delete(o *unstructured.Unstructured) {
	u.Helper()
	u.eventually(name(o)+" is deleted", func(ctx context.Context) error {
		return client.IgnoreNotFound(u.Delete(ctx, o))
	})
}

// see waits until an object is as it has to be.
func (u user) see(what string, o *unstructured.Unstructured, check func() error) {
	u.Helper()
	u.eventually(name(o)+" "+what, func(ctx context.Context) error {
		if err := u.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		return check()
	})
}

// holds waits until a condition of an object is true, for its newest generation.
func (u user) holds(condition string, o *unstructured.Unstructured) {
	u.Helper()
	u.see("has the condition "+condition, o, func() error {
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		for _, c := range conditions {
			if c, _ := c.(map[string]any); c["type"] == condition && c["status"] == "True" &&
				c["observedGeneration"] == o.GetGeneration() {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", conditions)
	})
}

func (u user) gone(o *unstructured.Unstructured) {
	u.Helper()
	u.eventually(name(o)+" is gone", func(ctx context.Context) error {
		err := u.Get(ctx, client.ObjectKeyFromObject(o), o)
		if err == nil {
			return fmt.Errorf("it is there: %v", o.Object)
		}
		return client.IgnoreNotFound(err)
	})
}

// none waits until no object of a kind is left in the namespace team.
func (u user) none(of string) {
	u.Helper()
	apiVersion, kind, _ := strings.Cut(of, " ")
	u.eventually("no "+kind+" is left", func(ctx context.Context) error {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion(apiVersion)
		list.SetKind(kind + "List")
		if err := u.List(ctx, list, client.InNamespace("team")); err != nil {
			return err
		}
		for _, o := range list.Items {
			return fmt.Errorf("%d are there, such as %v", len(list.Items), o.Object)
		}
		return nil
	})
}

// refused waits until an admission webhook refuses an object.
func (u user) refused(webhook, manifest string, args ...any) {
	u.Helper()
	o := u.object(manifest, args...)
	u.eventually(name(o)+" is refused", func(ctx context.Context) error {
		err := u.Create(ctx, o.DeepCopy(), client.DryRunAll)
		switch {
		case err == nil:
			return fmt.Errorf("it was accepted")
		case strings.Contains(err.Error(),
			fmt.Sprintf("admission webhook %q denied the request", webhook)):
			return nil
		}
		return err
	})
}

// define creates the definitions of a project.
func (u user) define(p project) {
	u.Helper()
	run(u.T, "go", "-C", p.in, "mod", "download", p.module) // until then it has no directory
	dir := run(u.T, "go", "-C", p.in, "list", "-m", "-f", "{{.Dir}}", p.module)
	files, err := filepath.Glob(filepath.Join(dir, p.definitions))
	if err != nil || len(files) == 0 {
		u.Fatalf("%s has no %s: %v", p.module, p.definitions, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			u.Fatal(err)
		}
		o := u.create("%s", text)
		u.see("is established", o, func() error {
			conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
			for _, c := range conditions {
				if c, _ := c.(map[string]any); c["type"] == "Established" && c["status"] == "True" {
					return nil
				}
			}
			return fmt.Errorf("its conditions are %v", conditions)
		})
	}
}
