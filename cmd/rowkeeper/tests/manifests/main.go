// Manifests writes pipelines as people write them, 1 to 20 KB each, one file per pipeline,
// to try a server with:
//
//	go run ./cmd/rowkeeper/tests/manifests -n 1000 -o dir
//
// The same seed gives the same files.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
)

func main() {
	n := flag.Int("n", 1000, "number of pipelines")
	dir := flag.String("o", "", "directory for the files; it is created if it does not exist")
	seed := flag.Uint64("seed", 1, "seed of the generator")
	namespace := flag.String("namespace", "", "the namespace of all pipelines; if empty, they "+
		"are spread over several")
	flag.Parse()
	if *dir == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := write(*dir, *n, *seed, *namespace); err != nil {
		fmt.Fprintf(os.Stderr, "manifests: %v\n", err)
		os.Exit(1)
	}
}

func write(dir string, n int, seed uint64, namespace string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	g := generator{rand.New(rand.NewPCG(seed, 0))}
	for i := range n {
		p := g.pipeline(i)
		if namespace != "" {
			p.Namespace = namespace
		}
		text, err := marshal(p)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%05d-%s.yaml", i, p.Name)), text,
			0o644); err != nil {
			return err
		}
	}
	return nil
}

// marshal writes a manifest without what only a server fills in.
func marshal(p *v1.Pipeline) ([]byte, error) {
	return yaml.Marshal(struct {
		APIVersion string          `json:"apiVersion"`
		Kind       string          `json:"kind"`
		Metadata   map[string]any  `json:"metadata"`
		Spec       v1.PipelineSpec `json:"spec"`
	}{v1.SchemeGroupVersion.String(), "Pipeline", map[string]any{
		"name": p.Name, "namespace": p.Namespace, "labels": p.Labels, "annotations": p.Annotations,
	}, p.Spec})
}

type generator struct{ *rand.Rand }

// stack is how the projects of one language are built.
type stack struct {
	language, image string
	checks          []string
	artifact        string
}

var (
	stacks = []stack{
		{"go", "golang:1.26", []string{"go vet ./...", "go test -race ./...",
			"golangci-lint run --timeout 5m", "go mod verify", "govulncheck ./..."},
			"go build -trimpath -o bin/ ./cmd/..."},
		{"java", "eclipse-temurin:25-jdk", []string{"./gradlew check", "./gradlew integrationTest",
			"./gradlew dependencyCheckAnalyze", "./gradlew spotbugsMain"}, "./gradlew bootJar"},
		{"typescript", "node:24", []string{"npm ci", "npm run lint", "npm test -- --coverage",
			"npm audit --omit=dev", "npx playwright test"}, "npm run build"},
		{"python", "python:3.14-slim", []string{"uv sync --frozen", "uv run ruff check",
			"uv run mypy src", "uv run pytest -n auto", "uv run pip-audit"}, "uv build"},
		{"rust", "rust:1.92", []string{"cargo fmt --check", "cargo clippy -- -D warnings",
			"cargo test --workspace", "cargo deny check"}, "cargo build --release"},
	}
	teams = []string{"payments", "search", "identity", "platform", "mobile", "data",
		"growth", "logistics"}
	nouns = []string{"ledger", "gateway", "index", "profile", "notifier", "scheduler",
		"catalog", "exporter", "router", "billing", "tracker", "worker"}
	environments = []string{"staging", "canary", "production-eu", "production-us"}
	tools        = []string{"registry.example.com/tools/deploy:4.2.1",
		"registry.example.com/tools/scan:2026.10", "registry.example.com/tools/notify:1.9.0"}
)

func pick[T any](g generator, from []T) T { return from[g.IntN(len(from))] }

// pipeline makes the i-th pipeline. Most are small and some are large, as in a company's
// repositories.
func (g generator) pipeline(i int) *v1.Pipeline {
	team, noun, stack := pick(g, teams), pick(g, nouns), pick(g, stacks)
	parallel := int32(1 + g.IntN(4))
	p := &v1.Pipeline{
		ObjectMeta: metav1.ObjectMeta{
			Name:      fmt.Sprintf("%s-%s-%05d", team, noun, i),
			Namespace: team,
			Labels: map[string]string{
				"app.kubernetes.io/name":    noun,
				"app.kubernetes.io/part-of": team,
				"example.com/language":      stack.language,
				"example.com/tier":          fmt.Sprint(g.IntN(3)),
			},
			Annotations: map[string]string{
				"example.com/repository": fmt.Sprintf("https://git.example.com/%s/%s.git",
					team, noun),
				"example.com/owner":   team + "@example.com",
				"example.com/runbook": fmt.Sprintf("https://wiki.example.com/%s/%s/build-and-release", team, noun),
			},
		},
		Spec: v1.PipelineSpec{Image: stack.image, MaxParallelRuns: &parallel,
			Suspended: g.IntN(20) == 0},
	}
	p.Spec.Parameters = []v1.Parameter{
		{Name: "REVISION", Description: "The commit to build."},
		{Name: "LOG_LEVEL", Description: "How much the steps say.", Default: ptr("info")},
	}
	for n := range g.IntN(6) {
		p.Spec.Parameters = append(p.Spec.Parameters, v1.Parameter{
			Name:        fmt.Sprintf("FEATURE_%d", n),
			Description: "Switches on what is not released yet: " + g.sentence(6),
			Default:     ptr(pick(g, []string{"on", "off"})),
		})
	}
	for n, check := range stack.checks[:1+g.IntN(len(stack.checks))] {
		p.Spec.Steps = append(p.Spec.Steps, g.step(fmt.Sprintf("check-%d", n), "", check,
			1+g.IntN(4)))
	}
	p.Spec.Steps = append(p.Spec.Steps, g.step("build", "", stack.artifact, 1+g.IntN(3)))
	// Fan-out over environments and shards is what makes pipelines long.
	for shard := range int(g.ExpFloat64() * 5) {
		if shard >= 17 {
			break
		}
		p.Spec.Steps = append(p.Spec.Steps, g.step(fmt.Sprintf("acceptance-%d", shard), "",
			g.script(shard), 2+g.IntN(4)))
	}
	for _, environment := range environments[:g.IntN(len(environments)+1)] {
		p.Spec.Steps = append(p.Spec.Steps, g.step("deploy-"+environment, pick(g, tools),
			"deploy --environment "+environment+" --wait --revision $REVISION", g.IntN(3)))
	}
	return p
}

func (g generator) step(name, image, script string, env int) v1.Step {
	s := v1.Step{Name: name, Image: image, Command: []string{"sh", "-ec", script},
		TimeoutSeconds: ptr(int64(60 * (1 + g.IntN(60))))}
	for n := range env {
		s.Env = append(s.Env, v1.EnvVar{Name: fmt.Sprintf("%s_%d", strings.ToUpper(pick(g, nouns)),
			n), Value: fmt.Sprintf("https://%s.%s.svc.example.com:%d/v%d", pick(g, nouns),
			pick(g, teams), 1024+g.IntN(60000), 1+g.IntN(3))})
	}
	return s
}

func (g generator) script(shard int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\nexport SHARD=%d\n", g.sentence(8), shard)
	for range 2 + g.IntN(4) {
		fmt.Fprintf(&b,
			"acceptance --suite %s --target \"$%s_0\" --retries %d --report out/%s.xml\n",
			pick(g, nouns), strings.ToUpper(pick(g, nouns)), g.IntN(4), pick(g, nouns))
	}
	return b.String()
}

func (g generator) sentence(words int) string {
	vocabulary := []string{"the", "service", "must", "answer", "within", "its", "budget", "also",
		"when", "one", "zone", "is", "away", "and", "queues", "are", "full"}
	s := make([]string, words)
	for i := range s {
		s[i] = pick(g, vocabulary)
	}
	return strings.Join(s, " ")
}

func ptr[T any](v T) *T { return &v }
