package kubernetes

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	clientcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/cluster"
)

const (
	// requestClients is how many clients send requests at a time, each over its own connection.
	requestClients = 64
	// requestBytes is how large the data of their objects are.
	requestBytes = 1024
	// window is how long requests of one kind are counted, and windows how often on each database.
	window  = 3 * time.Second
	windows = 9
)

// TestRequests measures kube-apiserver's own requests, on each database that ROWKEEPER_E2E_REQUESTS
// lists, beside etcd, in windows that take turns. It checks nothing but that no request fails.
// Nothing else may run on the machine, since it counts all processor time.
func TestRequests(t *testing.T) {
	list := os.Getenv("ROWKEEPER_E2E_REQUESTS")
	if list == "" {
		t.Skip("ROWKEEPER_E2E_REQUESTS lists no database; docs/contributing.md says more")
	}
	for _, kind := range strings.Split(list, ",") {
		t.Run(kind, func(t *testing.T) {
			var both []*requests
			for _, kind := range []string{kind, cluster.Etcd} {
				config := onRequired(t, kind)
				config.Servers = 1
				both = append(both, newRequests(t, start(t, config)))
			}
			measured := map[string][2][]measured{}
			for n := range windows {
				for _, verb := range []string{"create", "update", "get"} {
					pair := measured[verb]
					// The first in one turn is second in the next.
					for i := range both {
						i := (i + n) % len(both)
						pair[i] = append(pair[i], both[i].measure(t, verb))
					}
					measured[verb] = pair
				}
			}
			fmt.Printf("\n%d clients, ConfigMaps of %d bytes, %d windows of %s; ratios to etcd: "+
				"median (least to most)\n\n", requestClients, requestBytes, windows, window)
			fmt.Printf("| request | etcd | %s | ratio | CPU, etcd | CPU, %[1]s | ratio |\n"+
				"|---|---|---|---|---|---|---|\n", kind)
			for _, verb := range []string{"create", "update", "get"} {
				ours, etcd := measured[verb][0], measured[verb][1]
				fmt.Printf("| %s | %.0f/s | %.0f/s | %s | %.0f µs | %.0f µs | %s |\n", verb,
					median(etcd, rate), median(ours, rate), ratio(ours, etcd, rate),
					median(etcd, cpu), median(ours, cpu), ratio(ours, etcd, cpu))
			}
			fmt.Println()
		})
	}
}

// measured is what happened in one window.
type measured struct {
	requests int
	took     time.Duration
	// cpu is the processor time of all programs without that of the clients.
	cpu time.Duration
}

func rate(m measured) float64 { return float64(m.requests) / m.took.Seconds() }

// cpu is in microseconds for a request.
func cpu(m measured) float64 { return float64(m.cpu.Microseconds()) / float64(m.requests) }

func median(all []measured, of func(measured) float64) float64 {
	var list []float64
	for _, m := range all {
		list = append(list, of(m))
	}
	slices.Sort(list)
	return list[len(list)/2]
}

// ratio compares windows that followed each other.
func ratio(ours, etcd []measured, of func(measured) float64) string {
	var list []float64
	for i := range ours {
		list = append(list, of(ours[i])/of(etcd[i]))
	}
	slices.Sort(list)
	return fmt.Sprintf("%.2f (%.2f to %.2f)", list[len(list)/2], list[0], list[len(list)-1])
}

// requests are the clients of a control plane.
type requests struct {
	clients []clientcorev1.ConfigMapInterface
	// own has an object of each client, to read and to change.
	own []*corev1.ConfigMap
	// made counts what each client has created.
	made []int
}

func newRequests(t *testing.T, p *plane) *requests {
	t.Helper()
	const ns = "requests"
	p.namespace(t, ns)
	r := &requests{own: make([]*corev1.ConfigMap, requestClients),
		made: make([]int, requestClients)}
	for range requestClients {
		config := rest.CopyConfig(p.Admin)
		config.QPS = -1
		// Clients that dial for themselves share no connection.
		config.Dial = (&net.Dialer{}).DialContext
		client := kubernetes.NewForConfigOrDie(config)
		r.clients = append(r.clients, client.CoreV1().ConfigMaps(ns))
	}
	for c := range r.clients {
		if err := r.request(t.Context(), "create", c); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// request makes one request as a client.
func (r *requests) request(ctx context.Context, verb string, c int) (err error) {
	client := r.clients[c]
	switch verb {
	case "create":
		object := configMap(fmt.Sprintf("c%d-%d", c, r.made[c]))
		object.Data = map[string]string{"data": strings.Repeat("x", requestBytes)}
		r.made[c]++
		r.own[c], err = client.Create(ctx, object, metav1.CreateOptions{})
	case "update":
		r.made[c]++
		r.own[c].Data["n"] = strconv.Itoa(r.made[c])
		r.own[c], err = client.Update(ctx, r.own[c], metav1.UpdateOptions{})
	case "get":
		_, err = client.Get(ctx, r.own[c].Name, metav1.GetOptions{})
	}
	return err
}

// measure has all clients make requests for a window.
func (r *requests) measure(t *testing.T, verb string) measured {
	t.Helper()
	counts := make([]int, requestClients)
	var group errgroup.Group
	before, began := othersCPU(t), time.Now()
	for c := range r.clients {
		group.Go(func() error {
			for time.Since(began) < window {
				if err := r.request(t.Context(), verb, c); err != nil {
					return fmt.Errorf("%s: %w", verb, err)
				}
				counts[c]++
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	m := measured{took: time.Since(began), cpu: othersCPU(t) - before}
	for _, n := range counts {
		m.requests += n
	}
	return m
}

// othersCPU is the processor time that the machine has taken, without that of this process.
func othersCPU(t *testing.T) time.Duration {
	t.Helper()
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	// The first line has the sums over all processors, in hundredths of a second: user, nice and
	// system, and then idle times.
	var ticks int64
	for _, field := range strings.Fields(string(stat))[1:4] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ticks)*time.Second/100 -
		time.Duration(own.Utime.Nano()+own.Stime.Nano())
}
