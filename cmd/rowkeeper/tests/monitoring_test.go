package tests

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestMonitoring follows docs/operate/monitoring.md: by the files that its commands make, the
// metrics can be read, and nothing else. promtool takes the configuration and the alerts.
func TestMonitoring(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/operate/monitoring.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := func(language string) (texts []string) {
		for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").
			FindAllStringSubmatch(string(page), -1) {
			texts = append(texts, m[1])
		}
		return texts
	}
	for name, args := range map[string][]string{"types": nil, "crds": {"--enable-crds"}} {
		t.Run(name, func(t *testing.T) {
			s := start(t, t.TempDir(), args...)
			env := append(s.kubectlEnv(), "PATH="+filepath.Dir(rowkeeperProgram)+":"+
				filepath.Dir(kubectlProgram)+":"+os.Getenv("PATH"))
			commands := 0
			for _, block := range blocks("console") {
				block = strings.ReplaceAll(block, "../rowkeeper/deploy", root+"/deploy")
				for line := range strings.Lines(block) {
					r := run(t, s.dir, "", env, "bash", "-o", "pipefail", "-c",
						strings.TrimPrefix(line, "$ "))
					if r.code != 0 {
						t.Fatalf("%s%s%s", line, r.stdout, r.stderr)
					}
					commands++
				}
			}
			files := blocks("yaml")
			if commands != 5 || len(files) != 1 {
				t.Fatalf("the page has %d commands and %d files", commands, len(files))
			}
			in := func(name string) string { return filepath.Join(s.dir, name) }
			pair, err := tls.LoadX509KeyPair(in("prometheus.crt"), in("prometheus.key"))
			if err != nil {
				t.Fatal(err)
			}
			authority, err := os.ReadFile(in("rowkeeper-ca.crt"))
			if err != nil {
				t.Fatal(err)
			}
			c := &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: x509.NewCertPool()}
			if !c.RootCAs.AppendCertsFromPEM(authority) {
				t.Fatal("rowkeeper-ca.crt has no certificate")
			}
			client := http.Client{Transport: &http.Transport{TLSClientConfig: c}}
			for path, want := range map[string]int{"/metrics": 200, "/metrics/slis": 200,
				"/debug/pprof/": 403, "/apis/ci.rowkeeper.dev/v1/pipelines": 403} {
				response, err := client.Get(s.config(t).Host + path)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(response.Body)
				response.Body.Close()
				if err != nil || response.StatusCode != want {
					t.Errorf("%s answers %d %v: %.300s", path, response.StatusCode, err, body)
				}
				if path == "/metrics" {
					has(t, string(body), "rowkeeper_head_revision ", "rowkeeper_build_info{",
						`rowkeeper_certificate_expiry_timestamp_seconds{certificate="serving"}`,
						`rowkeeper_certificate_expiry_timestamp_seconds{certificate="authority"}`)
				}
			}
			if err := os.WriteFile(in("prometheus.yml"), []byte(files[0]), 0o644); err != nil {
				t.Fatal(err)
			}
			r := run(t, s.dir, "", nil, programPath(t, "promtool"), "check", "config",
				"prometheus.yml")
			if r.code != 0 || !strings.Contains(r.stdout, "rules found") {
				t.Errorf("promtool: %s%s", r.stdout, r.stderr)
			}
		})
	}
}
