package server

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/util/cert"

	"github.com/rowkeeper/rowkeeper/pkg/definitions"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	"github.com/rowkeeper/rowkeeper/pkg/example/apiserver"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/drivers"
)

// newServer is the server of the example API.
func newServer() *Server {
	return New(Program{
		Name: "rowkeeper", Scheme: apiserver.Scheme, Codecs: apiserver.Codecs,
		Drivers: drivers.All(),
		NewConfig: func() *genericapiserver.RecommendedConfig {
			return apiserver.NewConfig().Generic
		},
		Definitions: func(*genericapiserver.RecommendedConfig,
			definitions.Options) (definitions.Extend, error) {
			return nil, errors.New("nothing is served here")
		},
	})
}

// outcome is what flags lead to in a server that runs by itself.
type outcome struct {
	o        *Server
	config   *genericapiserver.Config
	database storage.Config
	rest     generic.RESTOptions
}

// apply parses flags and applies them, up to the point where the server would run.
func apply(t *testing.T, args ...string) outcome {
	t.Helper()
	o := newServer()
	flags := flagsOf(o)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	if o.configFile != "" {
		if err := applyConfigFile(o.configFile, flags); err != nil {
			t.Fatal(err)
		}
	}
	if !flags.Changed("secure-port") {
		o.serving.BindPort = 0
	}
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	if err := utilerrors.NewAggregate(o.validate()); err != nil {
		t.Fatal(err)
	}
	if err := o.listen(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.serving.Listener.Close() })
	database, err := o.Storage.Database()
	if err != nil {
		t.Fatal(err)
	}
	// The places of stored objects are not the question here.
	store, err := storage.Open(t.Context(), storage.Config{URL: "memory:", Drivers: drivers.All(),
		Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	config, err := o.config(store)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.features.ApplyTo(&config.Config, nil, nil); err != nil {
		t.Fatal(err)
	}
	rest, err := config.RESTOptionsGetter.GetRESTOptions(ci.Resource("pipelines"), &ci.Pipeline{})
	if err != nil {
		t.Fatal(err)
	}
	return outcome{o, &config.Config, database, rest}
}

func flagsOf(o *Server) *pflag.FlagSet {
	sections := o.flags()
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	for _, name := range sections.Order {
		flags.AddFlagSet(sections.FlagSets[name])
	}
	return flags
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func stored(t *testing.T, out outcome) string {
	t.Helper()
	var buf bytes.Buffer
	if err := out.rest.StorageConfig.Codec.Encode(&ci.Pipeline{}, &buf); err != nil {
		t.Fatal(err)
	}
	return buf.String()
}

func ready(t *testing.T, out outcome, name string) error {
	t.Helper()
	for _, check := range out.config.ReadyzChecks {
		if check.Name() == name {
			return check.Check(httptest.NewRequest(http.MethodGet, "/readyz",
				nil).WithContext(t.Context()))
		}
	}
	t.Fatalf("there is no check %s", name)
	return nil
}

// reservePort returns a port that nobody gets before the listener is closed.
func reservePort(t *testing.T) (int, net.Listener) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().(*net.TCPAddr).Port, l
}

const encryption = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [pipelines.ci.rowkeeper.dev]
  providers: [{secretbox: {keys: [{name: key, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}}]
`

// Each flag of a server program other than those for aggregated servers, with a value other than
// its default, further flags that it needs, and what it is seen by.
func TestFlags(t *testing.T) {
	certFile, keyFile := selfSigned(t)
	port, reserved := reservePort(t)
	encryptionFile := write(t, "encryption.yaml", encryption)
	auditPolicy := write(t, "policy.yaml",
		"apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
	webhook := write(t, "webhook.yaml",
		"apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: u}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n")
	t.Setenv("URL_OF_THE_TEST", "memory:")
	type seen = func(outcome) any
	serving := func(f func(*genericapiserver.SecureServingInfo) any) seen {
		return func(out outcome) any { return f(out.config.SecureServing) }
	}
	for name, tc := range map[string]struct {
		value string
		with  []string
		seen  seen
		want  any
	}{
		"config": {write(t, "config.yaml", "request-timeout: 7s\n"), nil, func(out outcome) any {
			return out.config.RequestTimeout.String()
		}, "7s"},
		"data-dir": {"/elsewhere", nil, func(out outcome) any {
			return out.database.URL
		}, "sqlite:///elsewhere/state.db"},
		"webhook-service": {"hooks/reviewer=localhost:9443", nil, func(out outcome) any {
			return out.o.webhookServices["hooks/reviewer"]
		}, "localhost:9443"},
		"service-account-issuer": {"https://issuer.example.com", nil, func(out outcome) any {
			return fmt.Sprint(out.o.serviceAccounts.Issuers)
		}, "[https://issuer.example.com]"},
		"service-account-key-file": {"old.pem", nil, func(out outcome) any {
			return fmt.Sprint(out.o.serviceAccounts.KeyFiles)
		}, "[old.pem]"},
		"service-account-signing-key-file": {"new.pem", nil, func(out outcome) any {
			return out.o.serviceAccounts.SigningKeyFile
		}, "new.pem"},
		"authentication-config": {"users.yaml", nil, func(out outcome) any {
			return out.o.signInFile
		}, "users.yaml"},
		"authorization-config": {"rights.yaml", nil, func(out outcome) any {
			return out.o.authorizationFile
		}, "rights.yaml"},
		"client-ca-file": {"users.crt", nil, func(out outcome) any {
			return out.o.Aggregated.Authentication.ClientCert.ClientCA
		}, "users.crt"},
		"enable-history": {"true", nil, func(out outcome) any { return out.o.enableHistory }, true},
		"enable-crds":    {"true", nil, func(out outcome) any { return out.o.enableCRDs }, true},
		"enable-garbage-collector": {"false", nil, func(out outcome) any {
			return out.rest.EnableGarbageCollection
		}, false},
		"enable-priority-and-fairness": {"false", nil, func(out outcome) any {
			return out.o.Aggregated.PriorityAndFairness
		}, false},
		"external-hostname": {"ci.example.com", nil, func(out outcome) any {
			return []any{out.config.ExternalAddress,
				slices.Contains(out.o.names().DNS, "ci.example.com")}
		}, []any{"ci.example.com", true}},
		"goaway-chance": {"0.01", nil, func(out outcome) any {
			return out.config.GoawayChance
		}, 0.01},
		"max-mutating-requests-inflight": {"7", nil, func(out outcome) any {
			return out.config.MaxMutatingRequestsInFlight
		}, 7},
		"max-requests-inflight": {"7", nil, func(out outcome) any {
			return out.config.MaxRequestsInFlight
		}, 7},
		"min-request-timeout": {"7", nil, func(out outcome) any {
			return out.config.MinRequestTimeout
		}, 7},
		"request-timeout": {"7s", nil, func(out outcome) any {
			return out.config.RequestTimeout.String()
		}, "7s"},
		"shutdown-delay-duration": {"7s", nil, func(out outcome) any {
			return out.config.ShutdownDelayDuration.String()
		}, "7s"},
		"shutdown-send-retry-after": {"true", nil, func(out outcome) any {
			return out.config.ShutdownSendRetryAfter
		}, true},
		"shutdown-watch-termination-grace-period": {"7s", nil, func(out outcome) any {
			return out.config.ShutdownWatchTerminationGracePeriod.String()
		}, "7s"},

		"compaction-interval": {"7s", nil, func(out outcome) any {
			return out.database.Compaction.Interval.String()
		}, "7s"},
		"compaction-keep": {"7", nil, func(out outcome) any {
			return fmt.Sprint(out.database.Compaction.Keep)
		}, "7"},
		"compaction-window": {"7s", nil, func(out outcome) any {
			return out.database.Compaction.Window.String()
		}, "7s"},
		"compaction-window-for": {"leases=168h",
			[]string{"--store-for=coordination.k8s.io/leases=leases"}, func(out outcome) any {
				return out.database.WindowFor["leases"].String()
			}, "168h0m0s"},
		"database": {"memory:", nil, func(out outcome) any {
			return out.database.URL
		}, "memory:"},
		"database-file": {write(t, "url", "memory:\n"), nil, func(out outcome) any {
			return out.database.URL
		}, "memory:"},
		"database-env": {"URL_OF_THE_TEST", nil, func(out outcome) any {
			return out.database.URL
		}, "memory:"},
		"database-login": {"false", []string{"--database=postgres://h/d"}, func(out outcome) any {
			if out.database.Login == nil {
				return false
			}
			_, err := out.database.Login(t.Context())
			return strings.Contains(fmt.Sprint(err), "login program false failed")
		}, true},
		"database-migrate": {"false", nil, func(out outcome) any {
			return out.database.Migrate
		}, false},
		"database-ready-timeout": {"1ns", nil, func(out outcome) any {
			return ready(t, out, "storage") == nil
		}, false},
		"database-timeout": {"7s", nil, func(out outcome) any {
			return out.database.Timeout.String()
		}, "7s"},
		"history-users": {"secrets,ci.rowkeeper.dev/pipelines", nil, func(out outcome) any {
			var of []string
			for _, r := range []schema.GroupResource{{Resource: "secrets"}, {Resource: "pipelines"},
				{Group: "ci.rowkeeper.dev", Resource: "pipelines"}} {
				if out.database.Users != nil && out.database.Users(r) {
					of = append(of, r.String())
				}
			}
			return strings.Join(of, " ")
		}, "secrets pipelines.ci.rowkeeper.dev"},
		"store": {"team-a", nil, func(out outcome) any {
			return out.database.Store
		}, "team-a"},
		"store-for": {"coordination.k8s.io/leases=leases", nil, func(out outcome) any {
			return out.database.StoreFor[schema.GroupResource{Group: "coordination.k8s.io",
				Resource: "leases"}]
		}, "leases"},
		"max-unpaged-list": {"7", nil, func(out outcome) any {
			return out.o.Storage.MaxUnpagedList
		}, 7},
		"delete-collection-workers": {"7", nil, func(out outcome) any {
			return out.rest.DeleteCollectionWorkers
		}, 7},
		"encryption-provider-config": {encryptionFile, nil, func(out outcome) any {
			return out.rest.StorageConfig.Transformer != nil
		}, true},
		"encryption-provider-config-automatic-reload": {"true",
			[]string{"--encryption-provider-config=" + encryptionFile}, func(out outcome) any {
				// They are wrapped, so that the keys of service accounts are encrypted as Secrets.
				wrapper := reflect.ValueOf(out.config.ResourceTransformers)
				if !wrapper.IsValid() {
					return false
				}
				_, dynamic := wrapper.FieldByName(
					"ResourceTransformers").Interface().(*encryptionconfig.DynamicTransformers)
				return dynamic
			}, true},
		"storage-count-interval": {"7s", nil, func(out outcome) any {
			return out.rest.CountMetricPollPeriod.String()
		}, "7s"},
		"storage-media-type": {apiruntime.ContentTypeYAML, nil, func(out outcome) any {
			return strings.HasPrefix(stored(t, out), "apiVersion: ")
		}, true},
		"storage-prefix": {"/elsewhere", nil, func(out outcome) any {
			return out.rest.StorageConfig.Prefix
		}, "/elsewhere"},
		"watch-cache":       {"false", nil, cached, false},
		"watch-cache-sizes": {"pipelines.ci.rowkeeper.dev#0", nil, cached, false},

		"bind-address": {"127.0.0.2", nil, serving(func(s *genericapiserver.SecureServingInfo) any {
			return s.Listener.Addr().(*net.TCPAddr).IP.String()
		}), "127.0.0.2"},
		"disable-http2-serving": {"true", nil,
			serving(func(s *genericapiserver.SecureServingInfo) any {
				return s.DisableHTTP2
			}), true},
		"http2-max-streams-per-connection": {"7", nil,
			serving(func(s *genericapiserver.SecureServingInfo) any {
				return s.HTTP2MaxStreamsPerConnection
			}), 7},
		"secure-port": {fmt.Sprint(port), nil,
			serving(func(s *genericapiserver.SecureServingInfo) any {
				reserved.Close() // another port was taken, and this one is next
				return s.Listener.Addr().(*net.TCPAddr).Port
			}), port},
		"tls-cert-file": {certFile,
			[]string{"--tls-private-key-file=" + keyFile}, serving(servesCertificate), true},
		"tls-private-key-file": {keyFile, []string{"--tls-cert-file=" + certFile},
			serving(servesCertificate), true},
		"tls-cipher-suites": {"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", nil,
			serving(func(s *genericapiserver.SecureServingInfo) any {
				return len(s.CipherSuites)
			}), 1},
		"tls-curve-preferences": {"29", nil,
			serving(func(s *genericapiserver.SecureServingInfo) any {
				return fmt.Sprint(s.CurvePreferences)
			}), "[X25519]"},
		"tls-min-version": {"VersionTLS13", nil,
			serving(func(s *genericapiserver.SecureServingInfo) any {
				return int(s.MinTLSVersion)
			}), 0x304},
		"tls-sni-cert-key": {certFile + "," + keyFile + ":other.example.com", nil,
			serving(func(s *genericapiserver.SecureServingInfo) any { return len(s.SNICerts) }), 2},

		"audit-policy-file": {auditPolicy, []string{"--audit-log-path=-"}, func(out outcome) any {
			return out.config.AuditPolicyRuleEvaluator != nil
		}, true},
		"audit-log-path": {filepath.Join(t.TempDir(), "audit.log"),
			[]string{"--audit-policy-file=" + auditPolicy}, func(out outcome) any {
				return out.config.AuditBackend != nil
			}, true},
		"audit-webhook-config-file": {webhook, []string{"--audit-policy-file=" + auditPolicy},
			func(out outcome) any {
				return out.config.AuditBackend != nil
			}, true},
		"audit-log-batch-buffer-size": {"7", nil, func(out outcome) any {
			return out.o.audit.LogOptions.BatchOptions.BatchConfig.BufferSize
		}, 7},
		"audit-log-batch-max-size": {"7", nil, func(out outcome) any {
			return out.o.audit.LogOptions.BatchOptions.BatchConfig.MaxBatchSize
		}, 7},
		"audit-log-batch-max-wait": {"7s", nil, func(out outcome) any {
			return out.o.audit.LogOptions.BatchOptions.BatchConfig.MaxBatchWait.String()
		}, "7s"},
		"audit-log-batch-throttle-burst": {"7", nil, func(out outcome) any {
			return out.o.audit.LogOptions.BatchOptions.BatchConfig.ThrottleBurst
		}, 7},
		"audit-log-batch-throttle-enable": {"true", nil, func(out outcome) any {
			return out.o.audit.LogOptions.BatchOptions.BatchConfig.ThrottleEnable
		}, true},
		"audit-log-batch-throttle-qps": {"7", nil, func(out outcome) any {
			return out.o.audit.LogOptions.BatchOptions.BatchConfig.ThrottleQPS
		}, float32(7)},
		"audit-log-compress": {"true", nil, func(out outcome) any {
			return out.o.audit.LogOptions.Compress
		}, true},
		"audit-log-format": {"legacy", nil, func(out outcome) any {
			return out.o.audit.LogOptions.Format
		}, "legacy"},
		"audit-log-maxage": {"7", nil, func(out outcome) any {
			return out.o.audit.LogOptions.MaxAge
		}, 7},
		"audit-log-maxbackup": {"7", nil, func(out outcome) any {
			return out.o.audit.LogOptions.MaxBackups
		}, 7},
		"audit-log-maxsize": {"7", nil, func(out outcome) any {
			return out.o.audit.LogOptions.MaxSize
		}, 7},
		"audit-log-mode": {"batch", nil, func(out outcome) any {
			return out.o.audit.LogOptions.BatchOptions.Mode
		}, "batch"},
		"audit-log-truncate-enabled": {"true", nil, func(out outcome) any {
			return out.o.audit.LogOptions.TruncateOptions.Enabled
		}, true},
		"audit-log-truncate-max-batch-size": {"700000", nil, func(out outcome) any {
			return out.o.audit.LogOptions.TruncateOptions.TruncateConfig.MaxBatchSize
		}, int64(700000)},
		"audit-log-truncate-max-event-size": {"700", nil, func(out outcome) any {
			return out.o.audit.LogOptions.TruncateOptions.TruncateConfig.MaxEventSize
		}, int64(700)},
		"audit-webhook-batch-buffer-size": {"7", nil, func(out outcome) any {
			return out.o.audit.WebhookOptions.BatchOptions.BatchConfig.BufferSize
		}, 7},
		"audit-webhook-batch-max-size": {"7", nil, func(out outcome) any {
			return out.o.audit.WebhookOptions.BatchOptions.BatchConfig.MaxBatchSize
		}, 7},
		"audit-webhook-batch-max-wait": {"7s", nil, func(out outcome) any {
			return out.o.audit.WebhookOptions.BatchOptions.BatchConfig.MaxBatchWait.String()
		}, "7s"},
		"audit-webhook-batch-throttle-burst": {"7", nil, func(out outcome) any {
			return out.o.audit.WebhookOptions.BatchOptions.BatchConfig.ThrottleBurst
		}, 7},
		"audit-webhook-batch-throttle-enable": {"false", nil, func(out outcome) any {
			return out.o.audit.WebhookOptions.BatchOptions.BatchConfig.ThrottleEnable
		}, false},
		"audit-webhook-batch-throttle-qps": {"7", nil, func(out outcome) any {
			return out.o.audit.WebhookOptions.BatchOptions.BatchConfig.ThrottleQPS
		}, float32(7)},
		"audit-webhook-initial-backoff": {"7s", nil, func(out outcome) any {
			return out.o.audit.WebhookOptions.InitialBackoff.String()
		}, "7s"},
		"audit-webhook-batch-initial-backoff": {"7s", nil, func(out outcome) any {
			return out.o.audit.WebhookOptions.InitialBackoff.String()
		}, "7s"},
		"audit-webhook-mode": {"blocking", nil, func(out outcome) any {
			return out.o.audit.WebhookOptions.BatchOptions.Mode
		}, "blocking"},
		"audit-webhook-truncate-enabled": {"true", nil, func(out outcome) any {
			return out.o.audit.WebhookOptions.TruncateOptions.Enabled
		}, true},
		"audit-webhook-truncate-max-batch-size": {"700000", nil, func(out outcome) any {
			return out.o.audit.WebhookOptions.TruncateOptions.TruncateConfig.MaxBatchSize
		}, int64(700000)},
		"audit-webhook-truncate-max-event-size": {"700", nil, func(out outcome) any {
			return out.o.audit.WebhookOptions.TruncateOptions.TruncateConfig.MaxEventSize
		}, int64(700)},

		"profiling": {"false", nil, func(out outcome) any {
			return out.config.EnableProfiling
		}, false},
		"contention-profiling": {"true", nil, func(out outcome) any {
			return out.config.EnableContentionProfiling
		}, true},
		"debug-socket-path": {"/elsewhere", nil, func(out outcome) any {
			return out.config.DebugSocketPath
		}, "/elsewhere"},
		"feature-gates": {"WatchListCompression=false", nil, func(outcome) any {
			return utilfeature.DefaultFeatureGate.Enabled("WatchListCompression")
		}, false},
		"tracing-config-file": {write(t, "tracing.yaml",
			"apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nsamplingRatePerMillion: 1\n"), nil, func(out outcome) any {
			return strings.Contains(fmt.Sprintf("%T", out.config.TracerProvider), "noop")
		}, false},

		// The program applies these by component-base when it starts; see TestLogging.
		"log-flush-frequency": {"7s", nil, func(out outcome) any {
			return out.o.logging.FlushFrequency.Duration.Duration.String()
		}, "7s"},
		"log-json-info-buffer-size": {"7", nil, func(out outcome) any {
			return out.o.logging.Options.JSON.InfoBufferSize.String()
		}, "7"},
		"log-json-split-stream": {"true", nil, func(out outcome) any {
			return out.o.logging.Options.JSON.SplitStream
		}, true},
		"log-text-info-buffer-size": {"7", nil, func(out outcome) any {
			return out.o.logging.Options.Text.InfoBufferSize.String()
		}, "7"},
		"log-text-split-stream": {"true", nil, func(out outcome) any {
			return out.o.logging.Options.Text.SplitStream
		}, true},
		"logging-format": {"json", nil, func(out outcome) any {
			return out.o.logging.Format
		}, "json"},
		"v": {"7", nil, func(out outcome) any {
			return int(out.o.logging.Verbosity)
		}, 7},
		"vmodule": {"cmd=7", nil, func(out outcome) any {
			return fmt.Sprint(out.o.logging.VModule)
		}, "[{cmd 7}]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() {
				if err := utilfeature.DefaultMutableFeatureGate.Set("WatchListCompression=true"); err != nil {
					t.Error(err)
				}
			})
			if before := tc.seen(apply(t)); reflect.DeepEqual(before, tc.want) {
				t.Fatalf("the same is seen without the flag: %v", before)
			}
			if got := tc.seen(apply(t,
				append(tc.with, "--"+name+"="+tc.value)...)); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("seen is %v, want %v", got, tc.want)
			}
		})
		tested[name] = true
	}
	sections := newServer().flags()
	for _, section := range sections.Order {
		if section == clusterSection {
			continue // TestAggregatedFlags
		}
		sections.FlagSets[section].VisitAll(func(f *pflag.Flag) {
			if !tested[f.Name] {
				t.Errorf("the flag --%s is not tested", f.Name)
			}
		})
	}
}

// tested are the flags that a test has looked at. TestValidate does for some.
var tested = map[string]bool{"audit-log-version": true, "audit-webhook-version": true}

// cached tells whether pipelines are served from memory.
func cached(out outcome) any {
	return strings.Contains(runtime.FuncForPC(reflect.ValueOf(out.rest.Decorator).Pointer()).Name(),
		").cached")
}

func servesCertificate(s *genericapiserver.SecureServingInfo) any { return s.Cert != nil }

func TestConfigFile(t *testing.T) {
	file := write(t, "config.yaml", `# What flags say, a file can say.
request-timeout: 7s
max-requests-inflight: 1000000000
shutdown-send-retry-after: true
goaway-chance: 0.0125
watch-cache-sizes: [pipelines.ci.rowkeeper.dev#0, pipelineruns.ci.rowkeeper.dev#0]
tls-curve-preferences: [29, 23]
feature-gates: {WatchListCompression: false}
v: 3
`)
	t.Cleanup(func() {
		if err := utilfeature.DefaultMutableFeatureGate.Set("WatchListCompression=true"); err != nil {
			t.Error(err)
		}
	})
	out := apply(t, "--config="+file, "--request-timeout=9s")
	for got, want := range map[any]any{
		// The command line comes before the file.
		out.config.RequestTimeout.String(): "9s",
		out.config.MaxRequestsInFlight:     1000000000,
		out.config.ShutdownSendRetryAfter:  true,
		out.config.GoawayChance:            0.0125,
		strings.Join(out.o.Storage.WatchCacheSizes,
			";"): "pipelines.ci.rowkeeper.dev#0;pipelineruns.ci.rowkeeper.dev#0",
		fmt.Sprint(out.config.SecureServing.CurvePreferences): "[X25519 CurveP256]",
		fmt.Sprint(out.o.logging.Verbosity):                   "3",
	} {
		if got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	if utilfeature.DefaultFeatureGate.Enabled("WatchListCompression") {
		t.Error("the feature gate is still open")
	}
	for content, want := range map[string]string{
		"- a":                       "is not a YAML mapping of flags to values",
		"a: b: c":                   "is not a YAML mapping of flags to values",
		"request-timeout: 1\n---\n": "",
		"nonsense: 1":               `sets "nonsense", which is not a flag`,
		"config: other.yaml":        `sets "config", which is not a flag`,
		"request-timeout: many":     `invalid argument "many" for "--request-timeout" flag`,
		"request-timeout:":          "request-timeout has no value",
		"v: 1\nv: 2":                "is not a YAML mapping of flags to values",
	} {
		err := applyConfigFile(write(t, "config.yaml", content), flagsOf(newServer()))
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", content, err, want)
		}
	}
	if err := applyConfigFile(write(t, "config.yaml", "# nothing\n"),
		flagsOf(newServer())); err != nil {
		t.Errorf("an empty file: %v", err)
	}
}

func TestValidate(t *testing.T) {
	for flag, want := range map[string]string{
		"--max-requests-inflight=-1": "--max-requests-inflight must not be " +
			"negative",
		"--max-mutating-requests-inflight=-1": "--max-mutating-requests-inflight must " +
			"not be negative",
		"--request-timeout=0":     "--request-timeout must be greater than 0",
		"--min-request-timeout=0": "--min-request-timeout must be greater than 0",
		"--shutdown-delay-duration=-1s": "--shutdown-delay-duration must not be " +
			"negative",
		"--shutdown-watch-termination-grace-period=-1s": "--shutdown-watch-termination-grace-period must not be negative",
		"--goaway-chance=0.5":                           "--goaway-chance must be between 0 and 0.02",
		"--storage-prefix=x":                            `--storage-prefix "x" has to begin with a slash`,
		"--storage-media-type=text/plain":               `--storage-media-type "text/plain" is not one of application/json, `,
		// The types of the example API have no code for it.
		"--storage-media-type=application/vnd.kubernetes.protobuf": "is not one of application/json, application/yaml",
		"--compaction-window=0":                         "--compaction-window must not be 0",
		"--compaction-window-for=default":               `--compaction-window-for "default" is not of the form NAME=DURATION`,
		"--compaction-window-for=default=7d":            `--compaction-window-for "default=7d" is not of the form NAME=DURATION`,
		"--compaction-window-for=default=0s":            `--compaction-window-for "default=0s" is not of the form NAME=DURATION`,
		"--compaction-window-for=other=1h":              `the store "other", which is neither that of --store nor one of --store-for`,
		"--history-users=a/b/c":                         `--history-users "a/b/c"`,
		"--history-users=*,":                            `--history-users ""`,
		"--compaction-keep=0":                           "--compaction-keep must be greater than 0",
		"--compaction-interval=0":                       "--compaction-interval must be greater than 0",
		"--encryption-provider-config-automatic-reload": "needs --encryption-provider-config",
		"--max-unpaged-list=0":                          "--max-unpaged-list must not be 0",
		"--delete-collection-workers=0": "--delete-collection-workers must be " +
			"greater than 0",
		"--storage-count-interval=-1s": "--storage-count-interval must not be " +
			"negative",
		"--database-ready-timeout=0": "--database-ready-timeout must be " +
			"greater than 0",
		"--database-timeout=0":             "--database-timeout must be greater than 0",
		"--watch-cache-sizes=pipelines":    `--watch-cache-sizes "pipelines" is not of the form resource.group#size`,
		"--watch-cache-sizes=pipelines#-1": `--watch-cache-sizes "pipelines#-1" is not of the form resource.group#size`,
		"--store-for=events":               `--store-for "events" is not of the form group/resource=NAME`,
		"--store-for=a/b/c=x":              `"a/b/c" does not name a resource as group/resource does`,
		"--store-for=events=No":            `no store can have the name "No"`,
		"--store-for=a/b=x,a/b=y":          `no store can have the name "x,a/b=y"`,
		// There is one version, so that all that can be seen is that others are refused.
		"--audit-log-version=audit.k8s.io/v2":     `allowed versions are ["audit.k8s.io/v1"]`,
		"--audit-webhook-version=audit.k8s.io/v2": `allowed versions are ["audit.k8s.io/v1"]`,
		"--tls-cert-file=x": "--tls-cert-file and --tls-private-key-file " +
			"need each other",
	} {
		o := newServer()
		flags := []string{flag}
		if strings.HasPrefix(flag, "--audit-log") {
			flags = append(flags, "--audit-log-path=-")
		}
		if strings.HasPrefix(flag, "--audit-webhook") {
			flags = append(flags, "--audit-webhook-config-file=x")
		}
		if err := flagsOf(o).Parse(flags); err != nil {
			t.Fatal(err)
		}
		if err := o.complete(); err != nil {
			t.Fatal(err)
		}
		if err := utilerrors.NewAggregate(o.validate()); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", flag, err, want)
		}
	}
	o := newServer()
	o.Storage.StoreFor = []string{"a/b=x", "a/b=y"}
	if err := utilerrors.NewAggregate(o.validate()); err == nil ||
		!strings.Contains(err.Error(), `--store-for assigns a/b twice, to the stores "x" and "y"`) {
		t.Errorf("two stores: %v", err)
	}
	o = newServer()
	o.Storage.URL, o.Storage.URLFile = "memory:", "x"
	if err := utilerrors.NewAggregate(o.validate()); err == nil ||
		!strings.Contains(err.Error(), "--database, --database-file and --database-env exclude each other") {
		t.Errorf("two databases: %v", err)
	}
}

func TestWhatIsShownOfTheDatabase(t *testing.T) {
	for url, want := range map[string]string{
		"sqlite:///var/lib/state.db?synchronous=normal":       "sqlite:///var/lib/state.db",
		"sqlite:../data/state.db?readers=4":                   "sqlite:../data/state.db",
		"postgres:user:secret@host/db":                        "postgres:",
		"memory:":                                             "memory:",
		"postgres://user:secret@host:5432/db?password=secret": "postgres://host:5432/db",
		"mysql://user:sec%zzret@host/db":                      "a database",
	} {
		o := newServer()
		o.Storage.URL = url
		if got := o.Storage.DatabaseName(); got != want || strings.Contains(got, "secret") {
			t.Errorf("%s is shown as %s, want %s", url, got, want)
		}
	}
}

// selfSigned writes a certificate and its key.
func selfSigned(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey("example.com", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return write(t, "tls.crt", string(certPEM)), write(t, "tls.key", string(keyPEM))
}
