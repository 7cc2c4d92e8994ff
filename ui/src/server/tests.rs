//! The page over its own router, with a scheduler and DNS that say nothing.

use tower::ServiceExt as _;

use axum::body::Body;

use super::*;

fn app(door: Option<Door>) -> Router {
    app_over(door, Router::new())
}

fn app_over(door: Option<Door>, scheduler: Router) -> Router {
    let sources = Sources {
        snapshots: Arc::new(Store::new(Snapshot::default())),
        readiness: Arc::default(),
        pages: Router::new(),
        scheduler,
    };
    let worlds = Arc::new(Store::new(World::empty().next(&Arc::new(crate::world::generated::snapshot(3, 4)), 0)));
    router(Arc::new(App {
        worlds,
        sources,
        hidden: Arc::new(Hidden::new(&[])),
        hosts: tokio::sync::Mutex::default(),
        views: Mutex::default(),
        begun: Instant::now(),
        questions: Arc::new(Semaphore::new(QUESTIONS_MAX)),
        answers: tokio::sync::Mutex::default(),
        viewers: Arc::new(Semaphore::new(VIEWERS_MAX)),
        door: door.map(Mutex::new),
        names: vec!["berth.example.org".into()],
        cookie: "berth-ui-8115".into(),
        secure: "",
        stop: CancellationToken::new(),
    }))
}

async fn get_with(router: &Router, path: &str, headers: &[(&str, &str)]) -> Response {
    let mut request = Request::builder().uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let Ok(response) = router.clone().oneshot(request.body(Body::empty()).unwrap()).await;
    response
}

#[tokio::test]
async fn other_sites_and_other_names_get_nothing() {
    let router = app(None);
    for (headers, status) in [
        (&[("host", "127.0.0.1:8115")][..], 200),
        (&[("host", "berth.example.org")], 200),
        (&[("host", "localhost:8115"), ("sec-fetch-site", "same-origin")], 200),
        (&[("host", "evil.example.org")], 421),
        (&[], 421),
        (&[("host", "127.0.0.1"), ("sec-fetch-site", "cross-site")], 403),
        (&[("host", "127.0.0.1"), ("origin", "http://evil.example.org")], 403),
    ] {
        let response = get_with(&router, "/ui/", headers).await;
        assert_eq!(response.status(), status, "{headers:?}");
        let policy = response.headers()["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("trusted-types 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(response.headers()[header::CACHE_CONTROL], "no-store");
    }
    let post = Request::builder().method("POST").uri("/ui/").header("host", "127.0.0.1").body(Body::empty()).unwrap();
    let Ok(response) = router.clone().oneshot(post).await;
    assert_eq!(response.status(), 405);
}

#[tokio::test]
async fn a_ticket_opens_the_page_once_and_its_cookie_opens_it_again() {
    let router = app(Some(Door::new("secret".into(), 0)));
    let host = ("host", "127.0.0.1:8115");
    assert_eq!(get_with(&router, "/ui/", &[host]).await.status(), 401);
    assert_eq!(get_with(&router, &STYLE.path, &[host]).await.status(), 401);
    let ticket = crate::ticket::ticket("secret", now(), &[3; RANDOM]);
    let address = format!("/ui/?t={ticket}");
    let response = get_with(&router, &address, &[host]).await;
    assert_eq!(
        (response.status(), &response.headers()["location"]),
        (StatusCode::SEE_OTHER, &HeaderValue::from_static("/ui/"))
    );
    let cookie = response.headers()[header::SET_COOKIE].to_str().unwrap();
    assert!(
        cookie.ends_with("HttpOnly; SameSite=Strict; Path=/ui; Max-Age=43200") && !cookie.contains("secret"),
        "{cookie}"
    );
    let session = ("cookie", cookie.split(';').next().unwrap());
    assert_eq!(get_with(&router, "/ui/", &[host, ("cookie", "other=1"), session]).await.status(), 200);
    assert_eq!(get_with(&router, &address, &[host]).await.status(), 401, "it works once");
    let planted = format!("berth-ui-8115=junk; {}", session.1);
    assert_eq!(
        get_with(&router, "/ui/", &[host, ("cookie", &planted)]).await.status(),
        200,
        "another server's is before it"
    );
}

#[tokio::test]
async fn viewers_are_bounded_and_each_is_sent_what_it_shows() {
    let router = app(None);
    let host = ("host", "127.0.0.1:8115");
    let mut open = Vec::new();
    for _ in 0..VIEWERS_MAX {
        let response = get_with(&router, "/ui/v1/stream?at=%2Fui%2Fhosts", &[host]).await;
        assert_eq!(response.status(), 200);
        open.push(response);
    }
    assert_eq!(get_with(&router, "/ui/v1/stream?at=%2Fui%2Fhosts", &[host]).await.status(), 503);
    let mut first = open.pop().unwrap().into_body().into_data_stream();
    let event = futures_util::StreamExt::next(&mut first).await.unwrap().unwrap();
    let text = String::from_utf8(event.to_vec()).unwrap();
    assert!(text.starts_with("data: {") && text.ends_with("}\n\n") && text.contains("win-00002"), "{text}");
    drop(first);
    assert_eq!(get_with(&router, "/ui/v1/stream?at=%2Fui%2Fhosts", &[host]).await.status(), 200, "it left room");
}

#[tokio::test(start_paused = true)]
async fn what_several_look_at_is_made_once_and_again_a_moment_later() {
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = asked.clone();
    let stacks = get(async move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(10)).await;
        "{\"stacks\": []}"
    });
    let router = app_over(None, Router::new().route("/v1/stacks", stacks));
    let headers = [("host", "127.0.0.1")];
    for expected in [1, 2] {
        let look = || get_with(&router, "/ui/stacks", &headers);
        let (one, other, third) = tokio::join!(look(), look(), look());
        assert_eq!([one, other, third].map(|response| response.status()), [StatusCode::OK; 3]);
        assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), expected);
        tokio::time::advance(VIEW_AGE).await;
    }
}
