// Package rotation is for aggregated servers that make their serving certificate by themselves. All
// replicas serve with one certificate, which an authority of their own signs. Both are in a Secret
// beside the Service. The cluster's API server learns the authority from the APIServices that name
// the Service. The manifests have the Secret, without data, since the right to create Secrets would
// be the right to have the token of every account of the namespace.
//
// # A round
//
// A [Rotator] does this once a minute, in each replica:
//
//  1. It lists the APIServices that name the Service.
//  2. It reads the Secret, and makes or renews in it what is missing or in the last third of its
//     lifetime: the authority (ca.crt, ca.key) and the certificate (tls.crt, tls.key).
//  3. It writes the authorities, ca.crt, into the APIServices that have others.
//  4. It serves with the certificate that is in the Secret now.
//
// # Why the cluster's API server trusts every replica at all times
//
// A replica serves with a certificate until its next round, so two certificates can be in use. A
// new authority comes before the older ones. These stay for an hour, until nobody serves with what
// they have signed. They also stay if the Secret is deleted or has no key: the APIServices, and the
// replicas, still know them. So it is enough that nobody serves with a certificate whose authority
// the cluster's API servers do not know. They learn of a change a moment after it. So a certificate
// that is still good is replaced only by a replica that has seen the authority in all APIServices
// for the time between two rounds. No APIService loses an authority by a replica that has read an
// older Secret: a replica lists before it reads, and what it writes is refused if the APIService
// has changed since the list. If the list had a newer authority, the Secret that was read after it
// has it, too.
//
// Replicas that renew at the same time write the same version of the Secret. One of them succeeds,
// and the others take what it has written.
package rotation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
)

// Options say whom the certificate is for, and how long things last.
type Options struct {
	// Namespace and Service name the Service. The Secret's name is that of the Service and
	// "-certificate".
	Namespace, Service string
	// Authority and Certificate are lifetimes. Default: those of package pki.
	Authority, Certificate time.Duration
	// Interval is the time between rounds. Default: a minute. An authority is trusted for 60 of
	// them after another one has come.
	Interval time.Duration
	// Clock is the real one by default.
	Clock clock.Clock
}

// Rotator keeps a serving certificate. It is a [dynamiccertificates.CertKeyContentProvider].
type Rotator struct {
	Options
	secrets     secrets
	apiServices dynamic.ResourceInterface

	mu        sync.Mutex
	cert, key []byte
	listeners []dynamiccertificates.Listener
	// served says that cert is that of the Secret. Before, it is one that nobody trusts.
	served bool
	// published are the authorities that all APIServices had in the last round, and since when.
	// Only Run uses it.
	published struct {
		authorities []byte
		since       time.Time
	}
	// known are the authorities that were in the Secret in the last round, without a key. Only Run
	// uses it.
	known pki.Chain
}

type secrets interface {
	Get(context.Context, string, metav1.GetOptions) (*corev1.Secret, error)
	Create(context.Context, *corev1.Secret, metav1.CreateOptions) (*corev1.Secret, error)
	Update(context.Context, *corev1.Secret, metav1.UpdateOptions) (*corev1.Secret, error)
}

var _ dynamiccertificates.CertKeyContentProvider = (*Rotator)(nil)

var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1",
	Resource: "apiservices"}

// New returns a Rotator that finds the cluster by a configuration. Until its first round it serves
// with a certificate that nobody trusts, so that a server can tell of its health while the cluster
// is away.
func New(config *rest.Config, o Options) (*Rotator, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for the cluster: %w", err)
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for the cluster: %w", err)
	}
	setDefault(&o.Authority, pki.AuthorityLifetime)
	setDefault(&o.Certificate, pki.CertificateLifetime)
	setDefault(&o.Interval, time.Minute)
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	r := &Rotator{Options: o, secrets: client.CoreV1().Secrets(o.Namespace),
		apiServices: dynamicClient.Resource(apiServices)}
	now := o.Clock.Now()
	first, err := pki.SelfSigned(r.template(), now.Add(-time.Hour), now.Add(o.Certificate))
	if err != nil {
		return nil, err
	}
	r.cert, r.key, err = first.PEM()
	return r, err
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

func (r *Rotator) template() pki.Template { return pki.Service(r.Namespace, r.Service) }

// Secret is the name of the Secret. It is not that of the manifests, which hold a certificate that
// is given.
func (r *Rotator) Secret() string { return r.Service + "-certificate" }

// Name is for logs.
func (r *Rotator) Name() string { return "secret/" + r.Namespace + "/" + r.Secret() }

// CurrentCertKeyContent returns what to serve with.
func (r *Rotator) CurrentCertKeyContent() (certPEM, keyPEM []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cert, r.key
}

// AddListener adds one that is told when the certificate changes.
func (r *Rotator) AddListener(l dynamiccertificates.Listener) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listeners = append(r.listeners, l)
}

// Check is a check of readiness: the server has a certificate that the cluster trusts.
func (r *Rotator) Check(*http.Request) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.served {
		return errors.New("the serving certificate is not there yet; the log says why")
	}
	return nil
}

// retryAfter is the time after a round that failed.
const retryAfter = 5 * time.Second

// Run does rounds until ctx ends.
func (r *Rotator) Run(ctx context.Context) {
	for {
		pause := r.Interval
		err := r.round(ctx)
		for try := 0; try < 5 && (apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)); try++ {
			err = r.round(ctx) // another replica was faster
		}
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			pause = min(pause, retryAfter)
			klog.ErrorS(err, "The serving certificate cannot be looked after", "secret", r.Name())
		}
		select {
		case <-ctx.Done():
			return
		case <-r.Clock.After(pause):
		}
	}
}

// round is described in the package's documentation.
func (r *Rotator) round(ctx context.Context) error {
	services, err := r.list(ctx)
	if err != nil {
		return fmt.Errorf("cannot list the APIServices: %w", err)
	}
	secret, err := r.renew(ctx, services)
	if err != nil {
		return err
	}
	// An APIService that cannot be changed is no reason to serve with an older certificate.
	err = r.publish(ctx, services, secret.Data[caCert])
	if !apierrors.IsConflict(err) {
		r.serve(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	}
	return err
}

// list returns the APIServices that name the Service.
func (r *Rotator) list(ctx context.Context) ([]unstructured.Unstructured, error) {
	all, err := r.apiServices.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var ours []unstructured.Unstructured
	for _, s := range all.Items {
		namespace, _, _ := unstructured.NestedString(s.Object, "spec", "service", "namespace")
		name, _, _ := unstructured.NestedString(s.Object, "spec", "service", "name")
		if namespace == r.Namespace && name == r.Service {
			ours = append(ours, s)
		}
	}
	return ours, nil
}

// The Secret's data, besides that of every Secret of its type.
const caCert, caKey = "ca.crt", "ca.key"

// renew returns the Secret, in which nothing is missing or too old.
func (r *Rotator) renew(ctx context.Context,
	services []unstructured.Unstructured) (*corev1.Secret, error) {
	secret, err := r.secrets.Get(ctx, r.Secret(), metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return nil, fmt.Errorf("cannot read the Secret: %w", err)
	}
	if missing {
		secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Secret()},
			Type:       corev1.SecretTypeTLS,
		}
	}
	authorities, serving, err := r.parse(secret, services)
	if err != nil {
		return nil, fmt.Errorf("%w; mend %s, or remove its data to have new ones "+
			"made", err, r.Name())
	}
	now := r.Clock.Now()
	settled := r.settled(services, secret.Data[caCert], now)
	authorities, fresh, err := authorities.Authority(now, r.Authority)
	if err != nil {
		return nil, err
	}
	good := serving.Serves(r.template(), authorities.Pair(), now)
	issue := !serving.Trusted(r.template(), authorities, now) || !good && settled && !fresh
	retire := good && len(authorities.Certs) > 1 &&
		now.Sub(authorities.Certs[0].NotBefore.Add(pki.Backdate)) > 60*r.Interval
	if retire {
		authorities.Certs = authorities.Certs[:1]
	}
	if !fresh && !issue && !retire {
		r.known.Certs = authorities.Certs
		return secret, nil
	}
	data := map[string][]byte{}
	if data[caCert], data[caKey], err = authorities.PEM(); err != nil {
		return nil, err
	}
	if issue {
		pair, err := authorities.Pair().Issue(r.template(), now, r.Certificate)
		if err != nil {
			return nil, err
		}
		serving = pair.Chain()
	}
	if data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey], err = serving.PEM(); err != nil {
		return nil, err
	}
	secret = secret.DeepCopy()
	secret.Data = data
	write := func() (*corev1.Secret, error) {
		return r.secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	if missing {
		write = func() (*corev1.Secret, error) {
			return r.secrets.Create(ctx, secret, metav1.CreateOptions{})
		}
	}
	if secret, err = write(); apierrors.IsForbidden(err) && missing {
		return nil, fmt.Errorf("the Secret is missing: apply the manifests again, which have it: %w",
			err)
	} else if err != nil {
		return nil, fmt.Errorf("cannot write the Secret: %w", err)
	}
	r.known.Certs = authorities.Certs
	klog.InfoS("The serving certificate was renewed", "secret", r.Name(), "authority", fresh,
		"certificate", issue)
	return secret, nil
}

// parse reads the Secret. If it has no authority with a key, as when it was deleted, all
// authorities that somebody may still need are trusted on, and the replica keeps what it serves
// with.
func (r *Rotator) parse(secret *corev1.Secret,
	services []unstructured.Unstructured) (authorities, serving pki.Chain, err error) {
	if len(secret.Data[caKey]) > 0 {
		authorities, err = pki.ParseChain(caCert, secret.Data[caCert], caKey, secret.Data[caKey])
	} else {
		authorities.Certs = r.known.Certs
		for _, text := range append(bundles(services), secret.Data[caCert]) {
			certs, _ := cert.ParseCertsPEM(text) // there may be none
			for _, c := range certs {
				if !slices.ContainsFunc(authorities.Certs, c.Equal) {
					authorities.Certs = append(slices.Clip(authorities.Certs), c)
				}
			}
		}
	}
	if err != nil {
		return authorities, serving, err
	}
	certPEM, keyPEM := secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]
	if len(certPEM) == 0 && r.Check(nil) == nil {
		certPEM, keyPEM = r.CurrentCertKeyContent()
	}
	if len(certPEM) > 0 {
		serving, err = pki.ParseChain(corev1.TLSCertKey, certPEM, corev1.TLSPrivateKeyKey, keyPEM)
	}
	return authorities, serving, err
}

// bundles are the authorities of the APIServices.
func bundles(services []unstructured.Unstructured) (texts [][]byte) {
	for _, s := range services {
		texts = append(texts, bundle(s))
	}
	return texts
}

// settled tells whether all APIServices have had the authorities for the time between two rounds.
func (r *Rotator) settled(services []unstructured.Unstructured, authorities []byte,
	now time.Time) bool {
	for _, s := range services {
		if !has(s, authorities) {
			r.published.authorities = nil
			return false
		}
	}
	if !bytes.Equal(r.published.authorities, authorities) {
		r.published.authorities, r.published.since = authorities, now
	}
	return now.Sub(r.published.since) >= r.Interval
}

func has(s unstructured.Unstructured, authorities []byte) bool {
	return bytes.Equal(bundle(s), authorities)
}

// bundle returns the authorities of an APIService, nil if it has none.
func bundle(s unstructured.Unstructured) []byte {
	var typed apiService
	if runtime.DefaultUnstructuredConverter.FromUnstructured(s.Object, &typed) != nil {
		return nil
	}
	return typed.Spec.CABundle
}

// apiService is what is read and written of an APIService.
type apiService struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Spec struct {
		CABundle []byte `json:"caBundle"`
	} `json:"spec"`
}

// publish writes the authorities into the APIServices. It is a conflict if one of them has changed
// since it was listed.
func (r *Rotator) publish(ctx context.Context, services []unstructured.Unstructured,
	authorities []byte) error {
	var errs []error
	for _, s := range services {
		if has(s, authorities) {
			continue
		}
		var change apiService
		change.Metadata.ResourceVersion = s.GetResourceVersion()
		change.Spec.CABundle = authorities
		patch, err := json.Marshal(change)
		if err == nil {
			_, err = r.apiServices.Patch(ctx, s.GetName(), types.MergePatchType, patch,
				metav1.PatchOptions{FieldManager: "rowkeeper"})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("cannot write the authority into the APIService %s: %w",
				s.GetName(), err))
		}
	}
	return errors.Join(errs...)
}

// serve serves with a certificate from now on.
func (r *Rotator) serve(certPEM, keyPEM []byte) {
	r.mu.Lock()
	changed := !bytes.Equal(r.cert, certPEM)
	r.cert, r.key, r.served = certPEM, keyPEM, true
	listeners := r.listeners
	r.mu.Unlock()
	if changed {
		for _, l := range listeners {
			l.Enqueue()
		}
	}
}
