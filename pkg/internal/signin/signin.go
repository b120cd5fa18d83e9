// Package signin lets the users of a server without a cluster sign in by tokens. Issuers such as
// Dex, Keycloak or a cloud's sign the tokens (JWTs, as OpenID Connect has them). A file names the
// issuers, and says which user a token stands for. It is upstream's AuthenticationConfiguration.
//
// Upstream publishes what checks the file and the tokens. This package follows the file, and takes
// tokens beside the certificates of package standalone. A changed file takes effect once all its
// issuers have answered; see package follow.
package signin

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"

	"github.com/rowkeeper/rowkeeper/pkg/internal/follow"
)

const (
	// answerWithin is how long the issuers of a changed file have to answer.
	answerWithin = time.Minute
	// endAfter is how long requests may still use the issuers of the file before.
	endAfter = time.Minute
)

var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme, serializer.EnableStrict)
)

func init() { install.Install(scheme) }

// File is an AuthenticationConfiguration in a file.
type File struct {
	file      *follow.File
	anonymous *apiserver.AnonymousAuthConfig
	own       []string // issuers that the server is itself
	issuers   atomic.Pointer[issuers]
}

// issuers are those of one content of the file.
type issuers struct {
	authenticator.Token
	each []oidc.AuthenticatorTokenWithHealthCheck
	// end ends what the issuers do in the background. They must not be used any more.
	end context.CancelFunc
}

// Open reads the file. An error says what is wrong with it. It does not wait for the issuers: the
// tokens of an issuer that has not answered yet are refused. Close ends what it begins. The file
// must not name the server's own issuers, whose tokens never come here.
func Open(name string, own ...string) (*File, error) {
	file, content, err := follow.Open(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read the authentication configuration: %w", err)
	}
	config, err := decode(name, content, own)
	if err != nil {
		return nil, err
	}
	all, err := start(config)
	if err != nil {
		return nil, fmt.Errorf("cannot use the issuers of %s: %w", name, err)
	}
	f := &File{file: file, anonymous: config.Anonymous, own: own}
	f.issuers.Store(all)
	return f, nil
}

// Close ends what the issuers do in the background, once no request is served any more.
func (f *File) Close() { f.issuers.Load().end() }

func decode(name string, content []byte,
	own []string) (*apiserver.AuthenticationConfiguration, error) {
	obj, err := runtime.Decode(codecs.UniversalDecoder(), content)
	if err != nil {
		return nil, fmt.Errorf("%s is not an AuthenticationConfiguration: %w", name, err)
	}
	config, ok := obj.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("%s has a %T, and must have an AuthenticationConfiguration", name,
			obj)
	}
	if errs := validation.ValidateAuthenticationConfiguration(cel.NewDefaultCompiler(), config,
		own); len(errs) > 0 {
		return nil, fmt.Errorf("%s: %w", name, errs.ToAggregate())
	}
	return config, nil
}

// start makes the issuers. They fetch their keys in the background.
func start(config *apiserver.AuthenticationConfiguration) (*issuers, error) {
	ctx, cancel := context.WithCancel(context.Background())
	all := &issuers{end: cancel}
	var tokens []authenticator.Token
	for _, jwt := range config.JWT {
		o := oidc.Options{JWTAuthenticator: jwt,
			SupportedSigningAlgs: oidc.AllValidSigningAlgorithms()}
		if pem := jwt.Issuer.CertificateAuthority; pem != "" {
			authority, err := dynamiccertificates.NewStaticCAContent(jwt.Issuer.URL, []byte(pem))
			if err != nil {
				cancel()
				return nil, err
			}
			o.CAContentProvider = authority
		}
		issuer, err := oidc.New(ctx, o)
		if err != nil {
			cancel()
			return nil, err
		}
		all.each = append(all.each, issuer)
		tokens = append(tokens, issuer)
	}
	all.Token = tokenunion.New(tokens...)
	return all, nil
}

// check tells which issuers have not answered yet.
func (i *issuers) check() error {
	var errs []error
	for _, one := range i.each {
		errs = append(errs, one.HealthCheck())
	}
	return errors.Join(errs...)
}

// AuthenticateToken implements authenticator.Token.
func (f *File) AuthenticateToken(ctx context.Context,
	token string) (*authenticator.Response, bool, error) {
	return f.issuers.Load().AuthenticateToken(ctx, token)
}

// Beside takes the tokens of requests that other does not know. If the file allows it, requests
// with neither are anonymous; a wrong token is refused in any case. The audiences are those of the
// server, if it has any.
func (f *File) Beside(other authenticator.Request,
	audiences authenticator.Audiences) authenticator.Request {
	// The tokens are for this server, and for no other audience that a TokenReview asks for.
	tokens := authenticator.WrapAudienceAgnosticToken(audiences, f)
	known := group.NewAuthenticatedGroupAdder(union.New(other, bearertoken.New(tokens),
		websocket.NewProtocolAuthenticator(tokens)))
	if f.anonymous == nil || !f.anonymous.Enabled {
		return known
	}
	return union.NewFailOnError(known, anonymous.NewAuthenticator(f.anonymous.Conditions))
}

// Run follows changes of the file until the context ends.
func (f *File) Run(ctx context.Context) {
	f.file.Run(ctx, "authentication configuration", f.use)
}

// use lets a changed file take effect, once its issuers have answered.
func (f *File) use(ctx context.Context, content []byte) error {
	name := f.file.Name()
	config, err := decode(name, content, f.own)
	if err != nil {
		return err
	}
	if !apiequality.Semantic.DeepEqual(config.Anonymous, f.anonymous) {
		return fmt.Errorf("%s changes who is anonymous: restart the server for that", name)
	}
	next, err := start(config)
	if err != nil {
		return fmt.Errorf("cannot use the issuers of %s: %w", name, err)
	}
	var missing error
	if err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, answerWithin, true,
		func(context.Context) (bool, error) {
			missing = next.check()
			return missing == nil, nil
		}); err != nil {
		next.end()
		return fmt.Errorf("not all issuers of %s answer: %w", name, errors.Join(missing, err))
	}
	time.AfterFunc(endAfter, f.issuers.Swap(next).end)
	return nil
}
