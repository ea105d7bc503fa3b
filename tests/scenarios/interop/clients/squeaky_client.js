// Runs squeaky's Publisher and Subscriber, used as squeaky's documentation describes.
// It has no setting for heartbeats: nsqd's default applies.
const { Publisher, Subscriber } = require('squeaky')
const { job, say, fail, received, hold, soon } = require('./job.js')

const [host, port] = job.nsqd.split(':')

async function connected () {
  const publisher = new Publisher({ host, port: Number(port), autoConnect: false })
  publisher.on('error', fail)
  await publisher.connect()
  return publisher
}

async function publish () {
  const publisher = await connected()
  say('publishing')
  for (const body of job.publish) await publisher.publish(job.topic, body)
  for (const body of job.defer) await publisher.publish(job.topic, body, job.defer_ms)
  if (job.multi_publish.length > 0) await publisher.publish(job.topic, job.multi_publish)
  say('published')
}

// A publisher closes itself after an error: its user must create another one.
async function insist () {
  for (;;) {
    const publisher = await connected()
    let open = true
    publisher.on('close', () => { open = false })
    try {
      await publisher.publish(job.topic, job.insist)
      return say('accepted')
    } catch (error) {
      await soon()
      say('refused', { text: String(error), connected: open })
    }
  }
}

function consume () {
  const where = job.lookupd
    ? { lookup: 'http://' + job.lookupd, discoverFrequency: 1000 }
    : { host, port: Number(port) }
  const subscriber = new Subscriber({
    topic: job.topic,
    channel: job.channel,
    concurrency: job.max_in_flight,
    timeout: job.msg_timeout_ms,
    ...where
  })
  subscriber.on('error', fail)
  subscriber.on('message', (message) => {
    const plan = received(message.body, message.attempts)
    if (plan === 'finish') message.finish()
    else if (plan === 'requeue') message.requeue(job.requeue_ms)
    else if (plan === 'touch') hold(message)
  })
}

publish().then(async () => {
  if (job.insist) await insist()
  if (job.consume) consume()
})
