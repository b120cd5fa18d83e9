package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

const (
	// throughputClients is how many clients there are at a time, roundTime how long a line is
	// measured in a round, of which there are rounds.
	throughputClients = 16
	roundTime         = 2 * time.Second
	rounds            = 2
	// payload makes an object about as large as usual ones.
	payload = 1000
)

// target is an extension API server that is measured.
type target struct {
	name   string
	client dynamic.ResourceInterface
	make   func(name string) *unstructured.Unstructured
	// pids are the server's processes.
	pids []int
}

// result is what was measured of a target in one line.
type result struct {
	times []time.Duration
	cpu   time.Duration
}

// testThroughput measures requests through the front door, to Rowkeeper and to upstream's
// sample-apiserver on an etcd in turn. It checks nothing but that no request fails.
func testThroughput(t *testing.T) {
	if !*throughputFlag {
		t.Skip("it measures, with the flag -throughput")
	}
	ns := newNamespace(t)
	storage, err := env.StartEtcd(t.Context(), "comparison")
	if err != nil {
		t.Fatal(err)
	}
	// Until the test ends no namespace can be deleted: upstream's server offers protobuf in vain.
	sample := startExtension(t, extension{
		// It writes down as much as Rowkeeper does.
		command: append([]string{filepath.Join(env.bin, "sample-apiserver"), "--audit-log-path=-",
			"--audit-policy-file=" + filepath.Join(env.installation.dir, "base", "server",
				"audit-policy.yaml")}, storage...),
		resource: flunders,
	})
	var replicas []int
	for _, pod := range env.installation.pods(t) {
		replicas = append(replicas, env.node.Process(pod.UID).Pid())
	}
	config := rest.CopyConfig(env.Admin)
	config.WarningHandler = rest.NoWarnings{} // that flunders are deprecated
	client := clientOf(t, config)
	filler := strings.Repeat("x", payload)
	targets := []target{
		{"rowkeeper", client.Resource(pipelinesV1).Namespace(ns),
			func(name string) *unstructured.Unstructured {
				object := pipeline(name)
				object.SetAnnotations(map[string]string{"example.com/filler": filler})
				return object
			}, replicas},
		{"sample-apiserver", client.Resource(flunders).Namespace(ns),
			func(name string) *unstructured.Unstructured {
				object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": flunders.GroupVersion().String(), "kind": "Flunder", "spec": map[string]any{"reference": "a"}}}
				object.SetName(name)
				object.SetAnnotations(map[string]string{"example.com/filler": filler})
				return object
			}, []int{sample}},
	}
	lines := []string{"create", "get", "update", "list of 100"}
	results := map[string]map[string]result{}
	for round := range rounds {
		for _, line := range lines {
			for _, target := range targets {
				got := measure(t, target, line, round)
				if results[line] == nil {
					results[line] = map[string]result{}
				}
				before := results[line][target.name]
				results[line][target.name] = result{append(before.times, got.times...),
					before.cpu + got.cpu}
			}
		}
	}
	fmt.Printf("\nThrough the front door, %d clients, objects of %d bytes and more; two replicas of Rowkeeper on PostgreSQL, one sample-apiserver on etcd.\n"+
		"CPU is that of the API server per request, without its database.\n\n", throughputClients,
		payload)
	fmt.Printf("| request | Rowkeeper | p50 | p99 | CPU | sample-apiserver | p50 | p99 | CPU |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, line := range lines {
		fmt.Printf("| %s |", line)
		for _, target := range targets {
			r := results[line][target.name]
			slices.Sort(r.times)
			n := len(r.times)
			fmt.Printf(" %.0f/s | %s | %s | %s |", float64(n)/(roundTime*rounds).Seconds(),
				r.times[n/2].Round(100*time.Microsecond),
				r.times[n*99/100].Round(100*time.Microsecond),
				(r.cpu / time.Duration(n)).Round(10*time.Microsecond))
		}
		fmt.Println()
	}
	fmt.Println()
}

// cpuTime is the processor time that processes have taken.
func cpuTime(t *testing.T, pids []int) time.Duration {
	t.Helper()
	var ticks int64
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		// The fields after the program's name, which may have spaces in it: the 12th and the 13th
		// are the times in user and system mode.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		for _, field := range fields[11:13] {
			n, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			ticks += n
		}
	}
	const ticksPerSecond = 100 // on Linux, whatever the kernel's own clock is
	return time.Duration(ticks) * time.Second / ticksPerSecond
}

// measure makes requests of one kind for a while, and returns how long each took.
func measure(t *testing.T, target target, line string, round int) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// Each client has an object of its own to read and to change.
	own := make([]*unstructured.Unstructured, throughputClients)
	name := func(client int, what string, n int) string {
		return fmt.Sprintf("c%d-%s-%d-%d", client, what, round, n)
	}
	err := inParallel(throughputClients, throughputClients, func(c int) (err error) {
		own[c], err = target.client.Create(ctx,
			target.make(name(c, "own-"+strings.ReplaceAll(line, " ", "-"), 0)),
			metav1.CreateOptions{})
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", target.name, err)
	}
	requests := map[string]func(c, n int) error{
		"create": func(c, n int) error {
			_, err := target.client.Create(ctx, target.make(name(c, "new", n)),
				metav1.CreateOptions{})
			return err
		},
		"get": func(c, _ int) error {
			_, err := target.client.Get(ctx, own[c].GetName(), metav1.GetOptions{})
			return err
		},
		"update": func(c, n int) error {
			own[c].SetLabels(map[string]string{"n": fmt.Sprint(n)})
			updated, err := target.client.Update(ctx, own[c], metav1.UpdateOptions{})
			own[c] = updated
			return err
		},
		"list of 100": func(int, int) error {
			_, err := target.client.List(ctx, metav1.ListOptions{Limit: 100})
			return err
		},
	}
	end := time.Now().Add(roundTime)
	var mu sync.Mutex
	var all result
	before := cpuTime(t, target.pids)
	err = inParallel(throughputClients, throughputClients, func(c int) error {
		var mine []time.Duration
		for n := 0; ; n++ {
			began := time.Now()
			if began.After(end) {
				break
			}
			if err := requests[line](c, n); err != nil {
				return err
			}
			mine = append(mine, time.Since(began))
		}
		mu.Lock()
		defer mu.Unlock()
		all.times = append(all.times, mine...)
		return nil
	})
	if err != nil {
		t.Fatalf("%s, %s: %v", target.name, line, err)
	}
	all.cpu = cpuTime(t, target.pids) - before
	return all
}
